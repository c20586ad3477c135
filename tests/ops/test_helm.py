"""The chart, rendered by Helm's own library and held against Kubernetes' own schemas."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest
from tests.conftest import missing
from tests.ops.chart import (
    BUCKET,
    CHART,
    MODEL,
    TRIAL,
    VOLUME,
    Manifest,
    container,
    environment,
    of_kind,
    render,
)
from tests.ops.conftest import ROOT

VERSIONS: Final = ("1.27", "1.34")
"""The chart's oldest, and a new one."""
INFORMATION: Final = 1
"""Of the linter's severities: what may stay, such as that a chart could have an icon."""
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
CASES: Final = {
    "trial": TRIAL,
    "everything": EVERYTHING | BUCKET,
    "trial-policies": EVERYTHING
    | VOLUME
    | {"redis": {}, "valkey": {"enabled": True, "storageClass": "fast"}},
}


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
    commands = (ROOT / "services").glob("cli*.py")
    known = set(re.findall(r"HEADWAY_[A-Z_]+", "".join(path.read_text() for path in commands)))
    templates: list[Path] = sorted((CHART / "templates").glob("*"))
    named = set(re.findall(r"HEADWAY_[A-Z_]+", "".join(path.read_text() for path in templates)))
    assert named <= known
