"""The Helm chart as Helm's own library renders it, and the parts of it that tests look at."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any, Final

import yaml
from tests.conftest import missing
from tests.ops.conftest import ROOT

CHART: Final = ROOT / "ops/helm/headway"
TRIAL: Final = {"valkey": {"enabled": True}}
MODEL: Final = {"name": "big", "model": "/models/big", "servedName": "org/big", "maxSequences": 64}
BUCKET: Final = {"files": {"url": "s3://bucket/prod", "existingSecret": "s3-keys"}}
VOLUME: Final = {"files": {"create": True, "size": "5Gi", "storageClass": "shared"}}

Manifest = dict[str, Any]


def render(values: Manifest) -> list[Manifest]:
    """All manifests of the chart, with values that its schema takes."""
    if find_spec("helm_python") is None:
        missing("helm-python-sdk")
    import helm_python

    with helm_python.Chart.load(CHART) as chart:
        chart.validate_schema(values)
        texts = chart.render(values, name="demo", namespace="prod")
    found = [
        one for name, text in texts.items() if name.endswith(".yaml") for one in yaml.safe_load_all(text)
    ]
    return [manifest for manifest in found if manifest]


def of_kind(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {one["metadata"]["name"]: one for one in manifests if one["kind"] == kind}


def container(manifest: Manifest) -> Manifest:
    (only,) = manifest["spec"]["template"]["spec"]["containers"]
    found: Manifest = only
    return found


def environment(manifest: Manifest) -> dict[str, Any]:
    return {item["name"]: item.get("value", item.get("valueFrom")) for item in container(manifest)["env"]}
