"""Dashboards, rules and pages speak of metrics that exist, and Prometheus' own tool takes them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from tests.ops.conftest import FAMILY, LABELS, ROOT, Promtool

NAME: Final = re.compile(r"\b(?:headway[_:][a-z0-9_:]*[a-z0-9]|vllm:[a-z0-9_]+)\b(?!@)")
FUNCTION: Final = re.compile(r"'(headway_\w+)'")
ALERTS: Final = ROOT / "ops/prometheus/alerts.yml"
DASHBOARDS: Final = sorted((ROOT / "ops/grafana/dashboards").glob("*.json"))
CHOSEN_BY_CLIENTS: Final = {"tenant"}
"""Labels whose values clients choose; each of them has a cap."""
HEADER: Final = re.compile(r"`([a-z0-9_:]+)(?:\{[a-z_, ]*\})?`")
BOUNDED: Final = {
    *("model", "priority", "reason", "kind", "mode", "cause", "part", "state", "outcome", "code", "worker"),
    *("method", "route", "status", "le", "model_name", "engine", "finished_reason"),
    *("kernels", "threads", "weights"),
}
"""Labels whose values the code or an operator chooses."""


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def panels(path: Path) -> Iterator[dict[str, Any]]:
    yield from json.loads(path.read_text())["panels"]


def expressions(path: Path) -> list[str]:
    return [target["expr"] for panel in panels(path) for target in panel.get("targets", ())]


def functions() -> set[str]:
    """Names of the queue's functions, which pages name too."""
    return {
        name for path in (ROOT / "queueing/lua").glob("*.lua") for name in FUNCTION.findall(path.read_text())
    }


def speaking_files() -> list[Path]:
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "ops").rglob("*.md"), ROOT / "README.md"]
    configuration = [*(ROOT / "ops/prometheus").glob("*.yml"), *(ROOT / "ops/helm").rglob("*.yaml")]
    return sorted([*pages, *configuration, *DASHBOARDS])


@pytest.mark.parametrize("path", speaking_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_metric_that_a_file_names_is_told_by_a_process(path: Path, known_series: set[str]) -> None:
    text = path.read_text().replace("headway_url", "")
    named = set(NAME.findall(text)) - functions()
    counters = {
        name.removesuffix("_total") for name in known_series
    }  # pages name counters without the suffix too
    assert sorted(named - known_series - counters) == []


def test_every_metric_has_a_line_in_the_page_of_metrics(expositions: tuple[str, ...]) -> None:
    page = (ROOT / "docs/metrics.md").read_text()
    told = {name for text in expositions for name, _ in FAMILY.findall(text)}
    ours = {name for name in told if name.startswith(("headway_", "vllm:")) and not name.endswith("_created")}
    named = set(HEADER.findall(page))
    assert sorted(ours - named - {name for name in ours if name.startswith("headway_scheduler_")}) == []


def test_no_label_holds_what_clients_choose_without_a_cap(expositions: tuple[str, ...]) -> None:
    labels = {
        label
        for text in expositions
        for _, inside in LABELS.findall(text)
        for label in re.findall(r'(\w+)="', inside)
    }
    assert labels <= BOUNDED | CHOSEN_BY_CLIENTS


def test_promtool_takes_the_configuration_and_the_rules_and_each_alert_fires_on_its_case(
    promtool: Promtool, tmp_path: Path
) -> None:
    promtool("check", "rules", "recording.yml", "alerts.yml")
    promtool("test", "rules", "alerts.test.yml")
    # Where compose puts them: the configuration names its rule files by the container's paths.
    text = (ROOT / "ops/prometheus/prometheus.yml").read_text().replace("/etc/prometheus", str(tmp_path))
    for name in ("recording.yml", "alerts.yml"):
        (tmp_path / name).write_text((ROOT / "ops/prometheus" / name).read_text())
    (tmp_path / "prometheus.yml").write_text(text)
    promtool("check", "config", str(tmp_path / "prometheus.yml"))


def test_every_alert_is_tried_and_has_its_section_in_the_runbook() -> None:
    tried = (ROOT / "ops/prometheus/alerts.test.yml").read_text()
    runbook = (ROOT / "ops/runbook.md").read_text()
    sections = re.split(r"^## ", runbook, flags=re.MULTILINE)
    by_name = {section.split("\n", 1)[0].strip(): section for section in sections}
    alerts = [rule["alert"] for rule in rules()]
    assert [name for name in by_name if name.startswith("Headway")] == alerts, "in the rules' order, no more"
    for rule in rules():
        name = rule["alert"]
        assert f'"{name}"' in tried or f"alertname: {name}" in tried, name
        assert rule["annotations"]["runbook"] == f"ops/runbook.md#{name.lower()}"
        for word in ("**Means**", "**Look**", "**Do**"):
            assert word in by_name[name], f"{name}: {word}"


def test_dashboards_are_what_their_source_says() -> None:
    done = subprocess.run(
        [sys.executable, "ops/grafana/dashboards.py", "--check"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, "run `python ops/grafana/dashboards.py`: " + done.stdout + done.stderr


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.name)
def test_a_dashboard_is_well_formed_and_prometheus_reads_its_queries(
    path: Path, promtool: Promtool, tmp_path: Path
) -> None:
    ids = [panel["id"] for panel in panels(path)]
    assert len(set(ids)) == len(ids)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels(path))
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells), "panels lie on each other"
    assert max(x for x, _ in cells) < 24
    asked = [
        {
            "record": f"panel:query:{place}",
            "expr": expr.replace("$__rate_interval", "1m").replace("$model", ".*"),
        }
        for place, expr in enumerate(expressions(path))
    ]
    (tmp_path / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": asked}]}))
    promtool("check", "rules", str(tmp_path / "queries.yml"))


def test_what_compose_mounts_for_monitoring_exists_and_nothing_of_it_is_open_to_the_network() -> None:
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
    for name in ("prometheus", "grafana"):
        assert services[name]["profiles"] == ["monitoring"]
        for volume in services[name]["volumes"]:
            source = volume.split(":")[0]
            assert not source.startswith("./") or (ROOT / source).exists(), source
        assert all(port.startswith("127.0.0.1:") for port in services[name]["ports"])
    provisioning = ROOT / "ops/grafana/provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())["datasources"]
    used = {
        panel["datasource"]["uid"] for path in DASHBOARDS for panel in panels(path) if "datasource" in panel
    }
    assert used == {source["uid"]}
