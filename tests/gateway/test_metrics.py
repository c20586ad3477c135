"""What the gateway tells of the fleet and of tenants, and how much of it clients can make it tell."""

from __future__ import annotations

import re
from typing import Final

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from tests.gateway.conftest import Rig, gateway_of, post_job
from tests.gateway.scripted_worker import Script, ScriptedWorker, card

from headway.gateway.fairness_window import FairnessWindow
from headway.gateway.latency_histogram import LatencyHistograms
from headway.gateway.tenant_labels import OTHER, TenantLabels
from headway.queueing.memory_queue import MemoryQueue

SERIES: Final = re.compile(r"^(headway_[a-z_]+)\{(.*)\} (\S+)$", re.MULTILINE)


def series(text: str, name: str, **labels: str) -> list[float]:
    """The values of a metric's series that have these labels."""
    wanted = {f'{key}="{value}"' for key, value in labels.items()}
    return [
        float(value)
        for found, inside, value in SERIES.findall(text)
        if found == name and wanted <= set(inside.split(","))
    ]


@pytest.fixture
async def idle() -> Rig:
    """A gateway whose model has a worker that claims nothing."""
    queue = MemoryQueue()
    await queue.heartbeat(card("w1"), ttl_seconds=60)
    return Rig(queue, ScriptedWorker(queue, Script()))


async def scrape(rig: Rig) -> str:
    async with rig.client() as http:
        return (await http.get("/metrics")).text


async def test_ten_thousand_tenants_are_fifty_label_values_and_other(idle: Rig) -> None:
    """Field case 39: a label whose values clients choose grows without end."""
    app = idle.app()
    metrics = gateway_of(app).metrics
    for number in range(10_000):
        metrics.accepted.labels("tiny", metrics.tenant(f"t{number}"), "standard").inc()
    async with idle.client(app) as http:
        for number in range(60):
            await http.post("/v1/jobs", json={"model": "tiny", "prompt": "a", "tenant": f"late{number}"})
        text = (await http.get("/metrics")).text
    tenants = set(re.findall(r'tenant="([^"]*)"', text))
    assert tenants == {f"t{number}" for number in range(50)} | {OTHER}
    assert series(text, "headway_tenant_backlog_jobs", tenant=OTHER) == [60.0]
    assert series(text, "headway_gateway_jobs_accepted_total", tenant=OTHER) == [9_950.0 + 60]


@given(st.lists(st.text(max_size=3)), st.integers(0, 5))
def test_a_tenant_keeps_its_label_and_there_are_never_more_than_the_cap(names: list[str], most: int) -> None:
    labels = TenantLabels(most)
    given_first = {name: labels(name) for name in names}
    assert len(set(given_first.values()) - {OTHER}) <= most
    for name, label in given_first.items():
        assert label in {name, OTHER}
        assert labels(name) == label or label == OTHER


async def test_a_scrape_tells_what_waits_of_whom_and_for_how_long(idle: Rig) -> None:
    for tenant, jobs in (("acme", 2), ("zenith", 1)):
        for _ in range(jobs):
            await post_job(idle, tenant=tenant, priority="standard")
    text = await scrape(idle)
    assert series(text, "headway_queue_depth", priority="standard") == [3.0]
    assert series(text, "headway_queue_depth", priority="batch") == [0.0]
    assert series(text, "headway_tenant_backlog_jobs", tenant="acme", priority="standard") == [2.0]
    assert series(text, "headway_tenant_backlog_jobs", tenant="zenith") == [1.0]
    (oldest,) = series(text, "headway_queue_oldest_seconds", priority="standard")
    assert 0.0 <= oldest < 60.0
    assert series(text, "headway_queue_oldest_seconds", priority="interactive") == [0.0]
    assert series(text, "headway_queue_wait_seconds") == [], "no rate is known: no prediction is told"
    assert series(text, "headway_workers", state="ready") == [1.0]
    assert "headway_queue_up 1.0" in text


async def test_a_tenant_that_waits_no_more_leaves_the_scrape(rig: Rig) -> None:
    app = rig.app()
    await post_job(rig, tenant="acme")
    await rig.until_ended()
    gateway_of(app).metrics.queue._tenants_read_at = None
    async with rig.client(app) as http:
        text = (await http.get("/metrics")).text
    assert series(text, "headway_tenant_backlog_jobs", tenant="acme") == []
    assert series(text, "headway_queue_wait_seconds") == [0.0]


async def test_a_submit_repeated_under_its_key_is_counted_and_accepted_once(idle: Rig) -> None:
    app = idle.app()
    async with idle.client(app) as http:
        for _ in range(3):
            answer = await http.post(
                "/v1/jobs", json={"model": "tiny", "prompt": "a"}, headers={"Idempotency-Key": "one"}
            )
            assert answer.status_code == 202
        text = (await http.get("/metrics")).text
    assert series(text, "headway_gateway_repeated_submits_total", model="tiny") == [2.0]
    assert series(text, "headway_gateway_jobs_accepted_total") == [1.0]


async def test_frames_that_a_reader_took_are_timed(rig: Rig) -> None:
    app = rig.app()
    async with rig.serve(app) as url, httpx.AsyncClient(base_url=url) as http:
        answer = await http.post(
            "/v1/completions", json={"model": "tiny", "prompt": "a", "stream": True, "max_tokens": 3}
        )
        assert "[DONE]" in answer.text
        text = (await http.get("/metrics")).text
    (frames,) = re.findall(r"^headway_gateway_stream_lag_seconds_count (\S+)$", text, re.MULTILINE)
    assert float(frames) >= 1.0


# -- fairness ---------------------------------------------------------------------------------------------

Times = dict[str, float]


def test_service_in_step_is_one_and_service_of_one_alone_is_a_part() -> None:
    window = FairnessWindow(60.0)
    assert window.look(0.0, {"a": 10.0, "b": 70.0, "c": 0.0}) is None
    assert window.look(10.0, {"a": 20.0, "b": 80.0, "c": 10.0}) == pytest.approx(1.0)
    alone = FairnessWindow(60.0)
    alone.look(0.0, {"a": 0.0, "b": 0.0, "c": 0.0, "d": 0.0})
    assert alone.look(30.0, {"a": 9.0, "b": 0.0, "c": 0.0, "d": 0.0}) == pytest.approx(0.25)


def test_who_did_not_wait_all_the_time_is_no_judge_of_it() -> None:
    window = FairnessWindow(60.0)
    window.look(0.0, {"a": 0.0, "b": 0.0})
    # c came from idle and was lifted; b went away: a alone waited throughout.
    assert window.look(10.0, {"a": 5.0, "c": 500.0}) is None
    assert window.look(65.0, {"a": 6.0, "c": 501.0}) == pytest.approx(1.0), "the first look is forgotten"


@given(
    st.lists(st.dictionaries(st.sampled_from("abcd"), st.floats(0, 1e6), min_size=1), min_size=1, max_size=8)
)
def test_the_index_lies_between_one_part_and_one_whatever_happens(looks: list[Times]) -> None:
    window = FairnessWindow(5.0)
    for second, times in enumerate(looks):
        index = window.look(float(second), times)
        assert index is None or 1 / len(times) - 1e-9 <= index <= 1 + 1e-9


def test_histograms_under_labels_tell_one_family() -> None:
    registry = CollectorRegistry()
    histograms = LatencyHistograms("lag", "Lag.", ("tenant",), (1.0, 2.0), registry)
    histograms.labels("a").observe(1.5)
    histograms.labels("b").observe(9.0)
    histograms.labels("a").observe(0.5)
    (family,) = registry.collect()
    values = {(s.labels["tenant"], s.labels.get("le")): s.value for s in family.samples}
    assert values["a", "1.0"] == 1.0
    assert values["a", "+Inf"] == 2.0
    assert values["b", "2.0"] == 0.0
    assert values["b", "+Inf"] == 1.0
