"""The chart, rendered by Helm's own library and held against Kubernetes' own schemas."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.conftest import missing
from tests.ops.conftest import ROOT

CHART: Final = ROOT / "ops/helm/headway"
VERSIONS: Final = ("1.27", "1.34")
"""The chart's oldest, and a new one."""
INFORMATION: Final = 1
"""Of the linter's severities: what may stay, such as that a chart could have an icon."""
TRIAL: Final = {"valkey": {"enabled": True}}
MODEL: Final = {"name": "big", "model": "/models/big", "servedName": "org/big", "maxSequences": 64}
SCALED: Final = MODEL | {"autoscaling": {"enabled": True, "minReplicas": 0, "waitSeconds": 7}}
EVERYTHING: Final = {
    "redis": {"existingSecret": "queue", "existingSecretKey": "url"},
    "otlp": "http://collector:4318",
    "networkPolicy": {"enabled": True},
    "monitoring": {"podMonitor": True, "rules": True, "labels": {"release": "prometheus"}},
    "gateway": {
        "tenants": "[acme]\nweight = 2\n",
        "extraEnv": [{"name": "A", "value": "b"}],
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"operator": "Exists"}],
    },
    "models": [SCALED | {"gpus": 2, "sharedMemory": "1Gi", "modelsClaim": "weights", "drainSeconds": 50}],
}
BUCKET: Final = {"files": {"url": "s3://bucket/prod", "existingSecret": "s3-keys"}}
VOLUME: Final = {"files": {"create": True, "size": "5Gi", "storageClass": "shared"}}
CASES: Final = {
    "trial": TRIAL,
    "everything": EVERYTHING | BUCKET,
    "trial-policies": EVERYTHING
    | VOLUME
    | {"redis": {}, "valkey": {"enabled": True, "storageClass": "fast"}},
}

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


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_what_the_chart_renders_is_what_kubernetes_takes(values: Manifest, version: str) -> None:
    if find_spec("kubernetes_validate") is None:
        missing("kubernetes-validate")
    import kubernetes_validate  # type: ignore[import-untyped]  # it has no types

    manifests = render(values)
    assert len(manifests) > 5
    names = [(one["kind"], one["metadata"]["name"]) for one in manifests]
    assert len(set(names)) == len(names)
    for one in manifests:
        if not one["apiVersion"].startswith(("keda.sh", "monitoring.coreos.com")):
            kubernetes_validate.validate(one, version, strict=True)


def test_gateways_serve_no_files_from_a_disk_of_their_own() -> None:
    """The image names a folder; each pod would have another, and no batch service would find its files."""
    gateway = of_kind(render(TRIAL), "Deployment")["demo-headway-gateway"]
    assert environment(gateway)["HEADWAY_FILES"] == ""
    assert container(gateway)["securityContext"]["readOnlyRootFilesystem"]
    place = {"name": "HEADWAY_FILES", "value": "s3://bucket/files"}
    gateway = of_kind(render(TRIAL | {"gateway": {"extraEnv": [place]}}), "Deployment")[
        "demo-headway-gateway"
    ]
    assert [each for each in container(gateway)["env"] if each["name"] == "HEADWAY_FILES"] == [place]


@pytest.mark.parametrize(
    ("files", "place", "claim"),
    [
        (BUCKET["files"], "s3://bucket/prod", None),
        (VOLUME["files"], "/files", "demo-headway-files"),
        ({"claim": "shared"}, "/files", "shared"),
    ],
    ids=["bucket", "claim-of-ours", "claim-of-yours"],
)
def test_gateways_and_batch_services_find_each_others_files(
    files: Manifest, place: str, claim: str | None
) -> None:
    manifests = render(TRIAL | {"files": files})
    deployments = of_kind(manifests, "Deployment")
    for name in ("demo-headway-gateway", "demo-headway-batch"):
        assert environment(deployments[name])["HEADWAY_FILES"] == place
        secrets = [each["secretRef"]["name"] for each in container(deployments[name]).get("envFrom", ())]
        assert secrets == ([files["existingSecret"]] if "existingSecret" in files else [])
        volumes = {each["name"]: each for each in deployments[name]["spec"]["template"]["spec"]["volumes"]}
        mounts = {each["name"]: each["mountPath"] for each in container(deployments[name])["volumeMounts"]}
        found = volumes["files"]["persistentVolumeClaim"]["claimName"] if "files" in volumes else None
        assert (found, mounts.get("files")) == (claim, place if claim else None)
    made = of_kind(manifests, "PersistentVolumeClaim")
    assert set(made) == ({claim} if files.get("create") else set())
    for each in made.values():
        assert each["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep", "results are tenants'"
        assert each["spec"]["accessModes"] == ["ReadWriteMany"]


def test_without_a_place_for_files_there_is_no_batch_service_and_with_two_no_release() -> None:
    assert "demo-headway-batch" not in of_kind(render(TRIAL), "Deployment")
    with pytest.raises(Exception, match=r"only one of files\.url, files\.claim"):
        render(TRIAL | {"files": {"url": "s3://bucket", "claim": "shared"}})


def test_a_batch_services_settings_and_probes_are_the_commands() -> None:
    asked: Manifest = {
        "concurrency": 7,
        "inFlight": 99,
        "webhooks": {"allowPrivate": True},
        "extraArgs": ["--log-level", "debug"],
    }
    batch = of_kind(render(TRIAL | BUCKET | {"batch": asked}), "Deployment")["demo-headway-batch"]
    told = environment(batch)
    assert (told["HEADWAY_BATCH_CONCURRENCY"], told["HEADWAY_BATCH_IN_FLIGHT"]) == ("7", "99")
    assert told["HEADWAY_WEBHOOK_ALLOW_PRIVATE"] == "true"
    assert container(batch)["args"] == ["batch", "worker", "--log-level", "debug"]
    file = told["HEADWAY_BATCH_HEARTBEAT_FILE"]
    for probe in ("startupProbe", "livenessProbe"):
        assert file in " ".join(container(batch)[probe]["exec"]["command"])


@pytest.mark.parametrize(
    ("asked", "folder", "volume"),
    [
        ({}, "/models/.headway", None),
        ({"modelsClaim": "weights"}, "/models/.headway", None),
        ({"modelsClaim": "weights", "modelsReadOnly": True}, "/cache", {"name": "cache", "emptyDir": {}}),
        (
            {"cacheClaim": "packed"},
            "/cache",
            {"name": "cache", "persistentVolumeClaim": {"claimName": "packed"}},
        ),
    ],
    ids=["pod", "models", "read-only", "own"],
)
def test_a_worker_keeps_what_it_makes_of_the_weights_where_it_can_write(
    asked: Manifest, folder: str, volume: Manifest | None
) -> None:
    worker = of_kind(render(TRIAL | {"models": [MODEL | asked | {"gpus": 1}]}), "Deployment")[
        "demo-headway-big"
    ]
    told = environment(worker)
    assert (told["HEADWAY_CACHE_DIR"], told["TRITON_CACHE_DIR"]) == (folder, f"{folder}/triton")
    volumes = {each["name"]: each for each in worker["spec"]["template"]["spec"]["volumes"]}
    assert volumes.get("cache") == volume
    mounts = {each["mountPath"]: each.get("readOnly", False) for each in container(worker)["volumeMounts"]}
    (writable,) = {path for path in mounts if folder.startswith(path)}
    assert not mounts[writable]


def test_a_cpu_worker_takes_as_many_threads_as_it_asks_for_cores() -> None:
    """Without a limit a pod sees every core of its node."""
    worker = of_kind(render(TRIAL), "Deployment")["demo-headway-smollm2"]
    assert environment(worker)["HEADWAY_THREADS"] == {
        "resourceFieldRef": {"resource": "requests.cpu", "divisor": "1"}
    }
    others: tuple[Manifest, ...] = ({"gpus": 1}, {"resources": {}})
    for asked in others:
        worker = of_kind(render(TRIAL | {"models": [MODEL | asked]}), "Deployment")["demo-headway-big"]
        assert "HEADWAY_THREADS" not in environment(worker)


def test_helm_lint_has_nothing_to_say_against_it() -> None:
    if find_spec("helm_python") is None:
        missing("helm-python-sdk")
    import helm_python.chart

    report = helm_python.chart.lint(CHART, values=TRIAL)
    assert report["errors"] == []
    assert [told for told in report["messages"] if told["severity"] > INFORMATION] == []


def test_a_release_without_a_queue_is_refused_with_what_to_set() -> None:
    with pytest.raises(Exception, match="where is the queue"):
        render({})


@pytest.mark.parametrize(
    "values",
    [
        {"gateway": {"replica": 3}},
        {"redis": {"url": "queue:6379"}},
        {"models": []},
        {"models": [MODEL | {"name": "Not_A_Name"}]},
        {"otlp": "collector:4317"},
        {"batch": {"replicas": 0}},
        {"files": {"url": "/files"}},
    ],
    ids=["unknown-name", "no-url", "no-models", "bad-name", "no-http", "no-batch", "a-folder-of-one-pod"],
)
def test_values_that_cannot_be_meant_are_refused(values: Manifest) -> None:
    with pytest.raises(Exception, match=r"schema|values|additional|match|minItems|got"):
        render(TRIAL | values)


def test_a_job_wakes_a_model_at_zero_and_nobody_in_its_way_waits_for_a_worker() -> None:
    manifests = render(TRIAL | {"models": [SCALED]})
    (scaled,) = of_kind(manifests, "ScaledObject").values()
    spec = scaled["spec"]
    assert (spec["minReplicaCount"], spec["scaleTargetRef"]["name"]) == (0, scaled["metadata"]["name"])
    assert "replicas" not in of_kind(manifests, "Deployment")["demo-headway-big"]["spec"], "KEDA's alone"
    jobs, wait = spec["triggers"]
    assert jobs["metadata"] | {"serverAddress": None} == {
        "serverAddress": None,
        "query": 'sum(max by (priority) (headway_queue_depth{model="org/big"}))'
        ' + max(headway_queue_running{model="org/big"})',
        "threshold": "64",
        "activationThreshold": "0",  # more than that wakes: one job does
        "ignoreNullValues": "false",  # no figures are no reason to take the last worker away
    }
    assert (jobs["metricType"], wait["metricType"]) == ("AverageValue", "Value")
    assert wait["metadata"]["threshold"] == "7"
    assert spec["fallback"]["replicas"] == 1
    gateway = container(of_kind(manifests, "Deployment")["demo-headway-gateway"])
    assert gateway["readinessProbe"]["httpGet"]["path"] == "/readyz?workers=0"
    assert gateway["livenessProbe"]["httpGet"]["path"] == "/livez"


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_nobody_is_cut_off_by_a_rollout_or_an_eviction(values: Manifest) -> None:
    manifests = render(values)
    budgets = of_kind(manifests, "PodDisruptionBudget")
    for name, deployment in of_kind(manifests, "Deployment").items():
        assert budgets[name]["spec"]["selector"] == deployment["spec"]["selector"]
        # A batch service holds nothing that it would have to finish.
        drain = float(environment(deployment).get("HEADWAY_DRAIN_SECONDS", 0))
        assert ("HEADWAY_DRAIN_SECONDS" in environment(deployment)) == (not name.endswith("-batch"))
        pod = deployment["spec"]["template"]["spec"]
        before = 0
        if "lifecycle" in container(deployment):
            command = container(deployment)["lifecycle"]["preStop"]["exec"]["command"]
            before = int(command[1])
            assert command[0] == "sleep"
            assert before > 0
        assert pod["terminationGracePeriodSeconds"] >= before + drain + 10
    gateway = of_kind(manifests, "Deployment")["demo-headway-gateway"]
    assert gateway["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_every_container_runs_as_nobody_in_particular_and_no_secret_is_written_into_it(
    values: Manifest,
) -> None:
    manifests = render(values)
    for kind in ("Deployment", "StatefulSet"):
        for manifest in of_kind(manifests, kind).values():
            pod = manifest["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["automountServiceAccountToken"] is False
            secured = container(manifest)["securityContext"]
            assert secured["readOnlyRootFilesystem"] is True
            assert secured["capabilities"] == {"drop": ["ALL"]}
            assert "limits" in container(manifest)["resources"] or kind == "Deployment"
            if kind == "Deployment":
                assert "secretKeyRef" in environment(manifest)["HEADWAY_REDIS_URL"]


def test_what_is_asked_for_arrives_where_it_acts() -> None:
    manifests = render(EVERYTHING)
    worker = of_kind(manifests, "Deployment")["demo-headway-big"]
    assert environment(worker)["HEADWAY_REDIS_URL"] == {"secretKeyRef": {"name": "queue", "key": "url"}}
    assert environment(worker)["HEADWAY_OTLP"] == "http://collector:4318"
    assert environment(worker)["HEADWAY_MODEL"] == "/models/big"
    assert container(worker)["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert not of_kind(manifests, "Secret")
    (tenants,) = of_kind(manifests, "ConfigMap").values()
    assert tenants["data"]["tenants.toml"].startswith("[acme]")
    monitors = of_kind(manifests, "PodMonitor")
    for name, port in (("gateway", "http"), ("worker", "metrics")):
        (endpoint,) = monitors[f"demo-headway-{name}"]["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] == port
    (rule,) = of_kind(manifests, "PrometheusRule").values()
    assert [group["name"] for group in rule["spec"]["groups"]] == ["headway", "headway-alerts"]


@pytest.mark.parametrize("name", ["recording.yml", "alerts.yml"])
def test_the_chart_carries_the_rules_as_they_are(name: str) -> None:
    ours, theirs = ROOT / "ops/prometheus" / name, CHART / "files" / name
    assert theirs.read_text() == ours.read_text(), f"cp {ours.relative_to(ROOT)} {theirs.relative_to(ROOT)}"


def test_the_charts_options_are_the_commands() -> None:
    """Every HEADWAY_ variable that a template sets is one that the command reads."""
    import re

    commands = (ROOT / "services").glob("cli*.py")
    known = set(re.findall(r"HEADWAY_[A-Z_]+", "".join(path.read_text() for path in commands)))
    templates: list[Path] = sorted((CHART / "templates").glob("*"))
    named = set(re.findall(r"HEADWAY_[A-Z_]+", "".join(path.read_text() for path in templates)))
    assert named <= known
