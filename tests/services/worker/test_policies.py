"""Batching as it was, and fixed chunks, as arms of a real worker: the same engine, another order."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.services.worker.conftest import JobMaker, ReadAll, StartWorker

from headway.engine.engine import Engine
from headway.engine.limits import StepLimits
from headway.engine.values import Objective, RequestSpec, Sampling
from headway.queueing.client import Client
from headway.queueing.events import EndReason
from headway.services.children import worker_command
from headway.services.errors import UsageError
from headway.services.model_host import build_engine
from headway.services.policies import PolicyName, limits_for, make_policy
from headway.services.settings import UpSettings, WorkerSettings


def engine_of(policy: PolicyName, *, max_sequences: int = 4, window: float | None = None) -> Engine:
    settings = WorkerSettings(
        model="scripted:ms_per_step=0",
        policy=policy,
        max_sequences=max_sequences,
        batch_window_seconds=window,
    )
    return build_engine(settings).engine


def add(engine: Engine, name: str, max_tokens: int, now: float = 0.0) -> None:
    prompt = tuple(name.encode())
    sampling = Sampling(temperature=0.0, ignore_eos=True)
    engine.add(RequestSpec(name, 0, prompt, sampling, max_tokens, arrival_seconds=now))


def step(engine: Engine, now: float) -> tuple[set[str], set[str]]:
    """Who got tokens, and who ended."""
    outputs = engine.step(now)
    served = {output.key.request_id for output in outputs if output.token_ids}
    return served, {output.key.request_id for output in outputs if output.finish_reason}


def test_a_static_batch_admits_nobody_until_its_last_answer_has_ended() -> None:
    engine = engine_of("static", max_sequences=3)
    for name, tokens in (("a", 2), ("b", 9), ("c", 4)):
        add(engine, name, tokens)
    now, ended = 0.0, set[str]()
    while ended != {"a", "b", "c"}:
        served, ends = step(engine, now)
        assert served <= {"a", "b", "c"}, "places are free, yet the batch is closed"
        ended |= ends
        now += 1.0
        if now == 1.0:
            add(engine, "late", 1, now)
            add(engine, "later", 1, now)
    assert now == 9.0, "as long as its longest answer"
    assert step(engine, now)[1] == {"late", "later"}


def test_a_static_batch_holds_as_many_as_max_sequences_and_the_next_takes_the_rest() -> None:
    engine = engine_of("static", max_sequences=2)
    for name in ("a", "b", "c"):
        add(engine, name, 2)
    assert [step(engine, float(now))[0] for now in range(4)] == [{"a", "b"}, {"a", "b"}, {"c"}, {"c"}]


def test_a_dynamic_batch_waits_its_window_for_company_and_no_longer() -> None:
    engine = engine_of("dynamic", max_sequences=3, window=0.5)
    add(engine, "a", 1, now=10.0)
    assert step(engine, 10.0) == (set(), set())
    assert engine.next_deadline == 10.5
    add(engine, "b", 1, now=10.2)
    assert step(engine, 10.4) == (set(), set())
    assert step(engine, 10.5)[1] == {"a", "b"}


def test_a_dynamic_batch_that_is_full_starts_at_once() -> None:
    engine = engine_of("dynamic", max_sequences=2, window=60.0)
    add(engine, "a", 1)
    add(engine, "b", 1)
    assert step(engine, 0.0)[1] == {"a", "b"}


@pytest.mark.parametrize("policy", ["static", "dynamic"])
async def test_a_worker_claims_a_whole_batch_ahead_of_the_one_that_runs(
    start_worker: StartWorker, client: Client, job: JobMaker, read_all: ReadAll, policy: str
) -> None:
    async with start_worker(
        model="scripted:ms_per_step=20", policy=policy, max_sequences=4, batch_window_seconds=None
    ) as running:
        jobs = [(await client.submit(job(f"prompt {place}", 12))).job_id for place in range(12)]
        ends = [await read_all(client, one) for one in jobs]
        assert all(end.reason is EndReason.LENGTH for _, end in ends)
        sizes = [len(step.keys) for step in running.host.engine.timeline.steps]
    assert max(sizes) == 4
    assert sizes.count(4) >= 2 * 12 - 2, "two batches are full: their jobs waited here"


def test_fixed_chunks_know_no_time() -> None:
    limits = StepLimits(objectives=(Objective(1.0, 0.1),))
    assert limits_for("fair", limits) is limits
    for policy in ("static", "dynamic", "fixed-chunks"):
        untimed = limits_for(policy, limits)
        assert untimed.objectives == ()
        assert min(untimed.max_step_seconds, untimed.max_gap_seconds) > 1e6
        assert untimed.max_step_tokens == limits.max_step_tokens


def test_up_hands_policy_and_window_to_its_workers(tmp_path: Path) -> None:
    settings = UpSettings(state_dir=tmp_path, policy="dynamic", batch_window_seconds=0.2)
    command = worker_command(settings, "w-1", 0)
    assert command[command.index("--policy") + 1] == "dynamic"
    assert command[command.index("--batch-window") + 1] == "0.2"
    assert "--batch-window" not in worker_command(UpSettings(tmp_path), "w-1", 0)


def test_a_window_without_dynamic_batches_is_refused_with_what_to_do() -> None:
    with pytest.raises(UsageError, match="--batch-window is for dynamic") as caught:
        make_policy("static", batch_window_seconds=0.1)
    assert caught.value.hint == "--policy dynamic, or leave it out"
