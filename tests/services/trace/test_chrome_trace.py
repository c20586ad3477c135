"""A timeline becomes a trace that Perfetto reads: every step, every request from its arrival to its end."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headway.engine.engine import Engine
from headway.engine.limits import StepLimits
from headway.engine.policy import POLICIES
from headway.engine.scripted import ByteTokenizer, ScriptedRunner, StepCost
from headway.engine.timeline import Timeline
from headway.engine.values import FinishReason, RequestSpec, Sampling
from headway.services.cli import app
from headway.services.errors import NotReachableError, ServiceError, UsageError
from headway.services.trace import chrome_trace
from headway.services.trace_file import fetch_trace
from headway.services.worker_http import WorkerHttp

Events = list[dict[str, Any]]


def spec(name: str, tenant: str, tokens: int = 4) -> RequestSpec:
    return RequestSpec(name, 0, tuple(range(40)), Sampling(temperature=0.0), tokens, tenant=tenant)


@pytest.fixture
def engine() -> Engine:
    """Two requests that ended, one that was cancelled, one that still runs; a step takes 10 ms."""
    runner = ScriptedRunner(cost=StepCost(per_step=0.01))
    limits = StepLimits(max_step_tokens=64, max_sequences=4)
    engine = Engine(runner, ByteTokenizer(), limits=limits, policy=POLICIES["fair"]())
    for request in (spec("a1", "a"), spec("b1", "b"), spec("a2", "a", 50), spec("b2", "b", 50)):
        engine.add(request)
    for step in range(8):
        if step == 6:
            engine.cancel("a2", FinishReason.CANCELLED)
        engine.step(0.01 * step)
    return engine


def drawn(timeline: Timeline) -> Events:
    trace = chrome_trace([("w1", timeline)])
    # What is written is what is read: no value that JSON does not have.
    events: Events = json.loads(json.dumps(trace, allow_nan=False))["traceEvents"]
    return events


def track(events: Events, name: str) -> Events:
    """All events on the track of one request."""
    (found,) = [e for e in events if e["name"] == "thread_name" and e["args"]["name"].startswith(name)]
    place = (found["pid"], found["tid"])
    return [e for e in events if (e["pid"], e["tid"]) == place and e["ph"] != "M"]


def test_every_step_is_a_slice_with_its_times(engine: Engine) -> None:
    events = drawn(engine.timeline)
    steps = [e for e in events if e["ph"] == "X" and e["name"].startswith("step ")]
    assert len(steps) == len(engine.timeline.steps) == engine.load.steps
    assert {step["dur"] for step in steps} == {10_000.0}
    assert [step["ts"] for step in steps] == [10_000.0 * place for place in range(len(steps))]
    assert all(step["args"]["new_tokens"] == sum(step["args"]["computed"].values()) for step in steps)


def test_every_request_is_drawn_from_its_arrival_to_its_end(engine: Engine) -> None:
    events = drawn(engine.timeline)
    ended = track(events, "a1")
    phases = [e for e in ended if e["ph"] == "X"]
    assert {e["name"] for e in phases} >= {"waiting", "prefill", "decode"}
    # The phases follow each other without a gap.
    for earlier, later in pairwise(phases):
        assert earlier["ts"] + earlier["dur"] == pytest.approx(later["ts"])
    assert sum(e["name"] == "token" for e in ended) == 4
    assert any(e["name"] == "finished: length" for e in ended)
    assert any(e["name"] == "finished: cancelled" for e in track(events, "a2"))
    assert not any(e["name"].startswith("finished") for e in track(events, "b2"))


def test_tenants_are_processes_and_several_engines_do_not_mix(engine: Engine) -> None:
    trace = chrome_trace([("w1", engine.timeline), ("w2", engine.timeline)])
    names = Counter(e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name")
    assert names == Counter(
        [f"{worker}: {what}" for worker in ("w1", "w2") for what in ("steps", "tenant a", "tenant b")]
    )
    numbers = [e["pid"] for e in trace["traceEvents"] if e["name"] == "process_name"]
    assert len(set(numbers)) == len(numbers)


def test_an_engine_that_did_nothing_gives_an_empty_trace() -> None:
    assert [e["ph"] for e in drawn(Timeline())] == ["M"]


def test_no_prompt_and_no_answer_is_in_a_trace(engine: Engine) -> None:
    texts = json.dumps(drawn(engine.timeline))
    assert "token_ids" not in texts
    assert "prompt" not in texts


def test_a_simulation_writes_its_timeline(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    command = f"simulate --rate 5 --duration 3s --policy fair --policy fcfs --timeline {path}"
    assert CliRunner().invoke(app, command.split(), catch_exceptions=False).exit_code == 0
    names = {
        e["args"]["name"] for e in json.loads(path.read_text())["traceEvents"] if e["name"] == "process_name"
    }
    assert names == {"fair: steps", "fair: tenant default", "fcfs: steps", "fcfs: tenant default"}


async def test_the_command_saves_what_a_worker_serves(engine: Engine, tmp_path: Path) -> None:
    page = json.dumps(chrome_trace([("w1", engine.timeline)])).encode()
    http = WorkerHttp(lambda: b"", lambda: (True, "ok"), lambda: (True, "ready"), lambda: page)
    port = await http.start("127.0.0.1", 0)
    path = tmp_path / "trace.json"
    arguments = ["trace", f"http://127.0.0.1:{port}", "--output", str(path)]
    result = await asyncio.to_thread(CliRunner().invoke, app, arguments, catch_exceptions=False)
    await http.close()
    assert result.exit_code == 0
    assert json.loads(path.read_text()) == json.loads(page)


async def test_a_worker_that_is_still_loading_says_so() -> None:
    http = WorkerHttp(lambda: b"", lambda: (True, "ok"), lambda: (False, "starting"), lambda: b"")
    port = await http.start("127.0.0.1", 0)
    with pytest.raises(ServiceError, match="503"):
        await asyncio.to_thread(fetch_trace, f"127.0.0.1:{port}")
    await http.close()


@pytest.mark.parametrize("page", [b"5", b"null", b"[]", b'{"traceEvents": 5}', b"no json"])
async def test_a_page_that_is_no_trace_is_said_to_be_none(page: bytes) -> None:
    http = WorkerHttp(lambda: b"", lambda: (True, "ok"), lambda: (True, "ready"), lambda: page)
    port = await http.start("127.0.0.1", 0)
    with pytest.raises(ServiceError, match="gives no trace"):
        await asyncio.to_thread(fetch_trace, f"127.0.0.1:{port}")
    await http.close()


def test_nobody_there_and_no_url_are_told_apart() -> None:
    with pytest.raises(
        NotReachableError, match=r"nobody answers at http://127\.0\.0\.1:9/trace: [^<]*refused"
    ):
        fetch_trace("http://127.0.0.1:9")
    for url in ("redis://127.0.0.1:6379", "http://[::1", "http://", ""):
        with pytest.raises(UsageError, match="no worker's metrics URL"):
            fetch_trace(url)
