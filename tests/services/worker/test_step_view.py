"""What a worker shows of its steps is what its engine did: each step once, nothing else, and not too much."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.services.worker.conftest import JobMaker, StartWorker

from headway.engine.engine import Engine
from headway.engine.limits import StepLimits
from headway.engine.policy import POLICIES
from headway.engine.scripted import ByteTokenizer, ScriptedRunner, StepCost
from headway.engine.values import FinishReason, RequestSpec, Sampling
from headway.queueing.client import Client
from headway.queueing.errors import QueueingError
from headway.queueing.memory_queue import MemoryQueue
from headway.services.step_view import MOST_STEPS, StepViewer

View = dict[str, Any]


class Stepping:
    """An engine with a clock of its own: each step takes 10 ms."""

    def __init__(self) -> None:
        limits = StepLimits(max_step_tokens=24, max_sequences=4)
        runner = ScriptedRunner(cost=StepCost(per_step=0.01))
        self.engine = Engine(runner, ByteTokenizer(), limits=limits, policy=POLICIES["fair"]())
        self.now = 0.0
        self.viewer = StepViewer(self.engine.timeline, lambda: self.now)

    def add(self, name: str, *, prompt: int = 8, tokens: int = 6, tenant: str = "acme") -> None:
        sampling = Sampling(temperature=0.0, ignore_eos=True)
        spec = RequestSpec(name, 0, tuple(range(prompt)), sampling, tokens, tenant=tenant, priority=0)
        self.engine.add(spec)

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.now += 0.01
            self.engine.step(self.now)

    def view(self) -> View:
        text = self.viewer.view(100)
        assert text is not None
        view: View = json.loads(text)
        return view


def told(views: list[View]) -> dict[tuple[int, str], int]:
    """Tokens by step and request, as the views say; fails on anything said twice."""
    cells: dict[tuple[int, str], int] = {}
    for view in views:
        numbers = {step[0] for step in view["steps"]}
        for name, _, _, _, runs in view["requests"]:
            for first, steps, tokens, _ in runs:
                for number in range(first, first + steps):
                    assert number in numbers
                    assert (number, name) not in cells
                    cells[number, name] = tokens
    return cells


@given(st.lists(st.sampled_from(["add", "step", "view", "cancel"]), max_size=60))
def test_views_tell_each_step_of_each_request_once_and_nothing_else(moves: list[str]) -> None:
    rig, views = Stepping(), list[View]()
    for at, move in enumerate(moves):
        match move:
            case "add":
                rig.add(f"r{at}", prompt=1 + 7 * at % 40, tokens=1 + at % 9)
            case "cancel":
                rig.engine.cancel(f"r{at - 2}", FinishReason.CANCELLED)
            case "step":
                rig.step()
            case _:
                text = rig.viewer.view(100)
                views += [json.loads(text)] if text else []
    text = rig.viewer.view(100)
    views += [json.loads(text)] if text else []
    steps = rig.engine.timeline.steps
    done = {
        (step.step, key.request_id): tokens
        for step in steps
        for key, tokens in zip(step.keys, step.tokens, strict=True)
    }
    assert told(views) == done
    assert [step[0] for view in views for step in view["steps"]] == [step.step for step in steps]
    assert rig.viewer.view(100) is None


def test_a_prompt_in_chunks_is_prefill_and_what_follows_is_decode_in_one_run() -> None:
    rig = Stepping()
    rig.add("long", prompt=60, tokens=6)
    rig.step(8)
    view = rig.view()
    ((name, _, tenant, band, runs),) = view["requests"]
    assert (name, tenant, band) == ("long", "acme", "interactive")
    assert [run for run in runs if not run[3]] == [[1, 2, 24, 0], [3, 1, 12, 0]]
    assert [run for run in runs if run[3]] == [[4, 5, 1, 1]]
    assert [event[2] for event in view["events"]] == ["admitted", "started", "finished"]
    assert view["events"][-1][5] == "length"


def test_who_watches_late_still_learns_whose_request_it_is_and_that_it_decodes() -> None:
    rig = Stepping()
    rig.add("early", tokens=200, tenant="globex")
    rig.step(150)
    view = rig.view()
    assert len(view["steps"]) == MOST_STEPS
    ((name, _, tenant, _, runs),) = view["requests"]
    assert (name, tenant, runs) == ("early", "globex", [[151 - MOST_STEPS, MOST_STEPS, 1, 1]])
    assert view["skipped"] == 0, "before the first view nothing was missed"


def test_a_view_of_a_fast_engine_leaves_steps_out_and_says_how_many() -> None:
    rig = Stepping()
    rig.add("fast", tokens=300)
    rig.step(10)
    rig.view()
    rig.step(MOST_STEPS + 30)
    view = rig.view()
    assert view["skipped"] == 30
    assert len(view["steps"]) == MOST_STEPS


def test_a_view_of_256_requests_stays_small() -> None:
    limits = StepLimits(max_step_tokens=4096, max_sequences=256)
    runner = ScriptedRunner(block_count=4096)
    engine = Engine(runner, ByteTokenizer(), limits=limits, policy=POLICIES["fair"]())
    for number in range(256):
        name = f"smollm2-135m:0:01M8NYXDZK7ETCPBZQQV2{number:05}#0"
        tenant = f"tenant-{number % 100}"
        engine.add(RequestSpec(name, 0, (1, 2, 3), Sampling(ignore_eos=True), 100, tenant=tenant))
    for step in range(40):
        engine.step(step / 100)
    text = StepViewer(engine.timeline, lambda: 0.4).view(4096)
    assert text is not None
    assert len(text) < 100_000, "the first view: also all that came in"


async def shown_by(queue: MemoryQueue) -> str:
    return b"".join(view.text for view in await queue.step_views.shown({"w-1": ""})).decode()


async def test_a_worker_shows_its_steps_while_somebody_watches_and_not_before(
    queue: MemoryQueue, client: Client, start_worker: StartWorker, job: JobMaker
) -> None:
    async with start_worker(model="scripted:ms_per_step=2"):
        unseen = await client.submit(job("a secret", 5))
        await asyncio.sleep(0.2)
        assert await queue.step_views.shown({"w-1": ""}) == ()
        await queue.step_views.watch(5)
        seen = await client.submit(job("another secret", 20))
        async with asyncio.timeout(5):
            while f"{seen.job_id}#0" not in (text := await shown_by(queue)):
                await asyncio.sleep(0.02)
    assert f"{unseen.job_id}#0" in text, "what ran lately is told to who comes later"
    assert "secret" not in text


async def test_a_worker_that_may_not_show_its_steps_serves_all_the_same(
    queue: MemoryQueue,
    client: Client,
    start_worker: StartWorker,
    job: JobMaker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refused() -> bool:
        raise QueueingError("NOPERM this user has no permissions to access one of the keys")

    monkeypatch.setattr(queue.step_views, "is_watched", refused)
    async with start_worker():
        submitted = await client.submit(job("hello", 5))
        async with asyncio.timeout(5):
            while await client.queue.result(submitted.job_id) is None:
                await asyncio.sleep(0.02)
