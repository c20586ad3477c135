"""What a worker tells of its jobs, its steps and its tenants."""

from __future__ import annotations

import asyncio
import re
from array import array

import pytest
from prometheus_client import CollectorRegistry
from tests.services.worker.conftest import JobMaker, Running, StartWorker

from headway.engine.timeline import Happening, RequestEvent, StepEvent, Timeline
from headway.engine.values import RequestKey
from headway.gateway.tenant_labels import OTHER, TenantLabels
from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.messages import Job, Objective, Priority
from headway.services.journeys import KEPT_SECONDS, Journeys
from headway.services.scheduler_metrics import SchedulerMetrics
from headway.services.step_metrics import StepMetrics

Series = dict[str, float]


def told(running: Running) -> Series:
    """Every series of a scrape, by name and labels without the model's."""
    text = running.worker.render_metrics().decode()
    text = re.sub(r'model="scripted",?', "", text).replace(",}", "}").replace("{}", "")
    lines = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, value in lines}


async def ended(queue: MemoryQueue, *jobs: Job) -> list[str]:
    ids = [(await queue.submit(job)).job_id for job in jobs]
    for job_id in ids:
        while await queue.result(job_id) is None:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0)
    return ids


async def test_phases_of_a_job_follow_each_other_and_add_up(
    queue: MemoryQueue, start_worker: StartWorker, job: JobMaker
) -> None:
    async with start_worker() as running:
        await ended(queue, job("abc", 20), job("defgh", 30))
        found = told(running)
    sums = {phase: found[f"headway_request_{phase}_seconds_sum"] for phase in ("queue", "prefill", "decode")}
    assert all(value >= 0.0 for value in sums.values())
    inference = found["headway_request_inference_seconds_sum"]
    assert sums["prefill"] + sums["decode"] == pytest.approx(inference)
    assert sums["queue"] + inference <= found["headway_e2e_seconds_sum"] + 1e-6
    assert found["headway_request_prompt_tokens_sum"] == 4 + 6  # each begins with a token of its own
    assert found["headway_request_completion_tokens_sum"] == 50.0
    assert found["headway_request_tpot_seconds_count"] == 2.0
    assert found["headway_stream_lag_seconds_count"] >= 2.0


async def test_the_same_is_told_under_vllms_names(
    queue: MemoryQueue, start_worker: StartWorker, job: JobMaker
) -> None:
    async with start_worker() as running:
        await ended(queue, job("abc", 20))
        found = told(running)
    of_vllm = '{engine="0",model_name="scripted"}'
    assert found[f"vllm:generation_tokens_total{of_vllm}"] == 20.0
    assert found['headway_tokens_total{kind="completion"}'] == 20.0
    assert found[f"vllm:time_to_first_token_seconds_sum{of_vllm}"] == found["headway_ttft_seconds_sum"]
    assert found[f"vllm:e2e_request_latency_seconds_count{of_vllm}"] == 1.0
    assert found[f"vllm:iteration_tokens_total_sum{of_vllm}"] == found["headway_step_tokens_sum"] == 4 + 19
    success = {name: value for name, value in found.items() if name.startswith("vllm:request_success_total")}
    assert sum(success.values()) == 1.0
    assert next(name for name, value in success.items() if value) == (
        'vllm:request_success_total{engine="0",finished_reason="length",model_name="scripted"}'
    )


async def test_goodput_counts_who_met_its_objective_and_says_what_the_others_missed(
    queue: MemoryQueue, start_worker: StartWorker, job: JobMaker
) -> None:
    def asking(ttft: float, tpot: float) -> Job:
        objective = Objective(ttft_seconds=ttft, tpot_seconds=tpot)
        return job("abc", 10).model_copy(update={"objective": objective})

    async with start_worker(model="scripted:ms_per_step=20") as running:
        never = 1e-9
        await ended(queue, asking(60, 60), asking(never, 60), asking(60, never), asking(never, never))
        await ended(queue, job("no objective", 3))
        found = told(running)
    outcomes = {
        outcome: found[f'headway_objective_jobs_total{{outcome="{outcome}",priority="standard"}}']
        for outcome in ("met", "ttft_missed", "tpot_missed", "both_missed", "failed")
    }
    assert outcomes == {"met": 1, "ttft_missed": 1, "tpot_missed": 1, "both_missed": 1, "failed": 0}


async def test_the_classes_own_objective_judges_jobs_that_bring_none(
    queue: MemoryQueue, start_worker: StartWorker, job: JobMaker
) -> None:
    interactive = job("abc", 5).model_copy(update={"priority": Priority.INTERACTIVE})
    async with start_worker(ttft_seconds=60.0, tpot_seconds=60.0) as running:
        await ended(queue, interactive, job("abc", 5))
        found = told(running)
    met = 'headway_objective_jobs_total{outcome="met",priority='
    assert (found[met + '"interactive"}'], found[met + '"standard"}']) == (1.0, 0.0)


async def test_slack_at_the_first_token_is_what_is_left_to_the_deadline(
    queue: MemoryQueue, start_worker: StartWorker, job: JobMaker
) -> None:
    async with start_worker() as running:
        await ended(queue, job("abc", 3).model_copy(update={"deadline_seconds": 20.0}), job("abc", 3))
        found = told(running)
    bucket = 'headway_deadline_slack_seconds_bucket{le="%s"}'
    assert (found[bucket % "10.0"], found[bucket % "30.0"], found[bucket % "+Inf"]) == (0.0, 1.0, 1.0)


async def test_tenants_are_told_what_their_requests_computed_and_their_weights(
    queue: MemoryQueue, start_worker: StartWorker, job: JobMaker
) -> None:
    by = [job("abc", 10).model_copy(update={"tenant": name}) for name in ("acme", "acme", "zenith")]
    async with start_worker(tenant_weights=(("acme", 2.0),), has_prefix_cache=False) as running:
        await ended(queue, *by)
        found = told(running)
    tokens, seconds = (
        [found[f'headway_tenant_service_{kind}_total{{tenant="{name}"}}'] for name in ("acme", "zenith")]
        for kind in ("tokens", "seconds")
    )
    assert tokens == [2 * (4 + 9), 4 + 9]
    assert seconds[0] > seconds[1] > 0.0
    assert found['headway_tenant_weight{tenant="acme"}'] == 2.0
    assert found['headway_tenant_weight{tenant="zenith"}'] == 1.0
    assert found['headway_tenant_ttft_seconds_count{tenant="acme"}'] == 2.0


async def test_what_a_frozen_worker_would_have_repeated_is_counted_as_suppressed(
    queue: MemoryQueue, start_worker: StartWorker, job: JobMaker
) -> None:
    async with start_worker(model="scripted:ms_per_step=20") as running:
        job_id = (await queue.submit(job("abc", 60))).job_id
        while (await queue.status(job_id)).committed_tokens < 2:
            await asyncio.sleep(0.01)
        await queue.expire_worker("scripted", "w-1")  # as if its lease had ended
        (claim,) = await queue.claim("scripted", "w-2", 1)
        while not told(running)["headway_claims_lost_total"]:
            await asyncio.sleep(0.02)
        found = told(running)
        await queue.release([(claim.job_id, claim.token)])
        await queue.cancel(job_id, "enough")
    assert found["headway_suppressed_tokens_total"] >= 1.0


def step(
    number: int, *keys: RequestKey, tokens: int = 1, predicted: float = 0.01, real: float = 0.01
) -> StepEvent:
    counts = array("i", [tokens] * len(keys))
    return StepEvent(number, float(number), predicted, real, 0, 0, keys, counts, bytes(len(keys)))


def event(key: RequestKey, happening: Happening, at: float, tenant: str = "acme") -> RequestEvent:
    return RequestEvent(key, happening, at, 0, tenant, 1)


def value_of(registry: CollectorRegistry, name: str, **labels: str) -> float:
    found = registry.get_sample_value(name, {"model": "m", **labels})
    assert found is not None
    return found


def test_each_step_counts_once_however_often_one_looks_and_however_full_the_ring_is() -> None:
    timeline, registry = Timeline(most_steps=8, most_events=8), CollectorRegistry()
    steps = StepMetrics(timeline, "m", registry, TenantLabels(5))
    key = RequestKey("a#0", 1)
    timeline.events.append(event(key, Happening.ADMITTED, 0.0))
    for number in range(1, 31):
        timeline.steps.append(step(number, key))
        if number % 4 == 0:
            steps.look()
            steps.look()
    timeline.events.append(event(key, Happening.FINISHED, 31.0))
    steps.look()
    timeline.steps.append(step(31, key, tokens=5))  # it ran while the request ended
    steps.look()
    assert value_of(registry, "headway_tenant_service_tokens_total", tenant="acme") == 30 + 5
    assert value_of(registry, "headway_tenant_service_seconds_total", tenant="acme") == pytest.approx(0.31)
    assert value_of(registry, "headway_step_tokens_sum") == 35.0


def test_a_steps_time_is_shared_by_tokens_and_never_grows() -> None:
    timeline, registry = Timeline(), CollectorRegistry()
    steps = StepMetrics(timeline, "m", registry, TenantLabels(1))
    ours, theirs = RequestKey("a#0", 1), RequestKey("b#0", 1)
    timeline.events.append(event(ours, Happening.ADMITTED, 0.0, "acme"))
    timeline.events.append(event(theirs, Happening.ADMITTED, 0.0, "zenith"))
    tokens = array("i", [3, 1])
    timeline.steps.append(StepEvent(1, 0.0, 0.02, 0.04, 0, 0, (ours, theirs), tokens, bytes(2)))
    steps.look()
    assert value_of(registry, "headway_tenant_service_seconds_total", tenant="acme") == pytest.approx(0.03)
    assert value_of(registry, "headway_tenant_service_seconds_total", tenant=OTHER) == pytest.approx(0.01)
    assert value_of(registry, "headway_step_prediction_error_ratio_bucket", le="0.5") == 1.0
    assert value_of(registry, "headway_step_prediction_error_ratio_bucket", le="0.3") == 0.0


def test_journeys_of_jobs_that_nobody_asks_for_are_forgotten() -> None:
    journeys = Journeys()
    for number in range(100):
        key = RequestKey(f"{number}#0", 1)
        journeys.follow([event(key, Happening.ADMITTED, 1.0), event(key, Happening.FINISHED, 2.0)])
    assert len(journeys) == 100
    (taken,) = journeys.take(["7#0", "unknown#0"])
    assert (taken.arrived, taken.finished) == (1.0, 2.0)
    late = event(RequestKey("late#0", 1), Happening.ADMITTED, 3.0 + KEPT_SECONDS)
    journeys.follow([late])
    assert len(journeys) == 1


def test_what_came_back_from_the_cache_was_not_computed_again() -> None:
    registry = CollectorRegistry()
    metrics = SchedulerMetrics("m", registry)
    metrics.show(
        {"preemption_lost_tokens": 100.0, "preemption_regained_tokens": 60.0, "preemptions_swap": 2.0}
    )
    metrics.resumed_tokens = 7
    assert value_of(registry, "headway_recomputed_tokens_total", cause="preemption") == 40.0
    assert value_of(registry, "headway_recomputed_tokens_total", cause="resume") == 7.0
    assert value_of(registry, "headway_preemptions_total", mode="swap") == 2.0
    assert value_of(registry, "headway_preemptions_total", mode="recompute") == 0.0
