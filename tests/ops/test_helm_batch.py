"""The chart's batch service, and the place for files that it shares with the gateways."""

from __future__ import annotations

import pytest
from tests.ops.chart import BUCKET, TRIAL, VOLUME, Manifest, container, environment, of_kind, render


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
    (port,) = container(batch)["ports"]
    assert str(port["containerPort"]) == told["HEADWAY_METRICS_PORT"]
    for probe, path in (
        ("startupProbe", "/readyz"),
        ("livenessProbe", "/healthz"),
        ("readinessProbe", "/readyz"),
    ):
        assert container(batch)[probe]["httpGet"] == {"path": path, "port": port["name"]}


def test_prometheus_finds_the_batch_service_as_it_finds_the_others() -> None:
    template = of_kind(render(TRIAL | BUCKET), "Deployment")["demo-headway-batch"]["spec"]["template"]
    assert template["metadata"]["annotations"]["prometheus.io/port"] == "9100"
    manifests = render(
        TRIAL | BUCKET | {"monitoring": {"podMonitor": True}, "networkPolicy": {"enabled": True}}
    )
    monitor = of_kind(manifests, "PodMonitor")["demo-headway-batch"]["spec"]
    assert monitor["selector"]["matchLabels"]["app.kubernetes.io/component"] == "batch"
    template = of_kind(manifests, "Deployment")["demo-headway-batch"]["spec"]["template"]
    assert template["metadata"]["labels"][monitor["jobLabel"]] == "headway-batch"
    assert "demo-headway-batch" in of_kind(manifests, "NetworkPolicy")
    assert "demo-headway-batch" not in of_kind(
        render(TRIAL | {"monitoring": {"podMonitor": True}}), "PodMonitor"
    )
