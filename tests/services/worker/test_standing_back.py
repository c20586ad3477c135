"""Batch requests stand back while somebody waits for a first token, and never for long."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from headway.engine.engine import Engine
from headway.engine.fair import FairPolicy
from headway.engine.limits import StepLimits
from headway.engine.scripted import ByteTokenizer, ScriptedRunner
from headway.engine.values import RequestSpec, Sampling
from headway.queueing.client import Client
from headway.queueing.messages import Priority
from headway.services.engine_thread import EngineThread
from headway.services.standing_back import (
    AFTER_SECONDS,
    BATCH_BAND,
    LATELY_SECONDS,
    LONGEST_SECONDS,
    SHORT_CHUNK_TOKENS,
    SHORT_STEP_SECONDS,
    StandingBack,
)
from headway.services.translate import BAND

if TYPE_CHECKING:
    from tests.services.worker.conftest import JobMaker, StartWorker

LIMITS = StepLimits()


def spec(name: str, priority: int, tokens: int = 8, deadline: float | None = None) -> RequestSpec:
    return RequestSpec(
        name, 0, tuple(b"prompt"), Sampling(), tokens, priority=priority, deadline_seconds=deadline
    )


def make_thread(clock: Clock) -> EngineThread:
    engine = Engine(ScriptedRunner(), ByteTokenizer(), limits=LIMITS, policy=FairPolicy())
    return EngineThread(
        engine, notify=lambda: None, observe_step=lambda _: None, clock=clock, unacknowledged_tokens=1000
    )


def test_the_lowest_class_is_the_batch_one() -> None:
    assert BAND[Priority.BATCH] == max(BAND.values()) == BATCH_BAND


def test_batch_requests_are_held_until_the_first_token_and_go_on_then() -> None:
    back = StandingBack(LIMITS)
    back.opened(spec("b1", 2), 0.0)
    back.opened(spec("b2", 2), 0.0)
    assert back.begin(0.0).held == ()
    back.opened(spec("i", 0), 1.0)
    assert set(back.begin(1.0).held) == {"b1", "b2"}
    assert back.begin(1.1).held == ()
    back.opened(spec("b3", 2), 1.1)
    assert back.begin(1.2).held == ("b3",), "who comes meanwhile waits as well"
    back.closed("b2")
    back.answered("i")
    assert back.begin(1.3).freed == (), "nor at once: who comes next would meet their step"
    assert set(back.begin(1.3 + AFTER_SECONDS).freed) == {"b1", "b3"}
    assert not back.is_holding


def test_batch_requests_go_on_at_once_where_nobody_else_is_left_and_stand_back_for_who_comes_then() -> None:
    back = StandingBack(LIMITS)
    back.opened(spec("b", 2), 0.0)
    back.opened(spec("i", 0), 0.0)
    back.begin(0.0)
    back.answered("i")
    back.closed("i")
    assert back.begin(0.01).freed == ()
    back.stands(0.01)
    assert back.begin(0.01).freed == ("b",)
    back.opened(spec("j", 0), 0.02)
    assert back.begin(0.02).held == ("b",)


def test_no_batch_request_is_held_for_longer_than_two_seconds_under_an_endless_stream_of_others() -> None:
    back = StandingBack(LIMITS)
    back.opened(spec("b", 2), 0.0)
    free: list[float] = [0.0]
    for tick in range(1, 1000):
        now = tick * 0.01
        back.opened(spec(f"i{tick}", 1), now)
        back.begin(now)
        if not back.holds("b"):
            free.append(now)
    assert max(after - before for before, after in pairwise(free)) <= LONGEST_SECONDS + 0.03
    assert len(free) >= 4 * 9, "and then for a tenth of a second each time"


def test_few_batch_requests_compute_while_others_were_here_lately_the_oldest_first() -> None:
    back = StandingBack(replace(LIMITS, max_sequences=8))
    for name in "abcd":
        back.opened(spec(name, 2), 0.0)
    assert back.begin(0.0).held == (), "alone they have every place"
    back.opened(spec("i", 0), 1.0)
    back.begin(1.0)
    back.answered("i")
    back.begin(1.0)
    assert back.begin(1.1).freed == ("a", "b")
    back.closed("a")
    assert back.begin(1.2).freed == ("c",)
    assert back.begin(1.0 + LATELY_SECONDS).freed == ("d",)


def test_steps_are_short_while_others_were_here_lately_and_as_the_operator_set_them_otherwise() -> None:
    back = StandingBack(LIMITS)
    back.opened(spec("b", 2), 0.0)
    assert back.begin(0.0).limits is None
    back.opened(spec("i", 0), 1.0)
    assert back.begin(1.0).limits is None, "what others need is not cut to pieces"
    back.answered("i")
    back.begin(1.0)
    short = back.begin(1.1).limits
    assert short == replace(
        LIMITS,
        min_chunk_tokens=min(LIMITS.min_chunk_tokens, SHORT_CHUNK_TOKENS),
        max_gap_seconds=SHORT_STEP_SECONDS,
        max_step_seconds=SHORT_STEP_SECONDS,
    )
    assert back.begin(1.2).limits is None
    assert back.begin(1.1 + LATELY_SECONDS).limits == LIMITS
    back.opened(spec("i2", 0), 20.0)
    back.answered("i2")
    assert back.begin(20.0).limits == short
    back.closed("b")
    assert back.begin(20.1).limits == LIMITS


def test_those_who_compute_yield_to_those_who_are_held_if_they_get_nowhere() -> None:
    """Their blocks may be with those who are held, and answers of others make steps all the while."""
    back = StandingBack(replace(LIMITS, max_sequences=4))
    back.opened(spec("a", 2), 0.0)
    back.opened(spec("b", 2), 0.0)
    free = 0
    for tick in range(500):
        now = tick * 0.02
        back.opened(spec(f"i{tick}", 0), now)
        back.answered(f"i{tick}")
        back.begin(now)
        if tick < 50:
            back.answered("a")
            assert tick == 0 or back.holds("b"), "while one gets on the other waits"
        free += not back.holds("b")
    assert free >= 4 * 5


def test_who_comes_first_after_a_long_rest_is_not_taken_for_one_who_has_waited_all_the_while() -> None:
    back = StandingBack(LIMITS)
    back.opened(spec("b", 2), 0.0)
    back.begin(0.0)
    back.opened(spec("i", 0), 100.0)
    assert back.begin(100.0).held == ("b",)


def test_a_name_that_comes_back_is_held_anew() -> None:
    """A job that went and came again, before a step began: the engine knows nothing of its hold."""
    back = StandingBack(LIMITS)
    back.opened(spec("b", 2), 0.0)
    back.opened(spec("i", 0), 0.0)
    assert back.begin(0.0).held == ("b",)
    back.closed("b")
    back.opened(spec("b", 2), 0.1)
    assert back.begin(0.1).held == ("b",)
    back.opened(spec("b", 2), 0.2)
    assert back.begin(0.2).held == ("b",), "also where it takes the place of the older one"


def test_an_engine_whose_last_requests_ended_in_one_step_sleeps() -> None:
    """One was held and met its deadline there: nobody is left whom the thread has to look after."""
    thread = make_thread(Clock())
    thread.add("b", [spec("b", 2, tokens=50, deadline=0.5)])
    thread._iterate()
    thread._clock = lambda: 0.6
    thread.add("i", [spec("i", 0, tokens=1)])
    thread._iterate()
    assert {output.key.request_id for output in thread.take() if output.finish_reason} == {"i", "b"}
    assert not thread._has_runnable


async def test_a_worker_with_one_batch_job_leaves_to_others_what_it_has_no_places_for(
    start_worker: StartWorker, client: Client, job: JobMaker
) -> None:
    long = job("long", 2000)
    async with start_worker(model="scripted:ms_per_step=20", max_sequences=4):
        await client.submit(long.model_copy(update={"priority": Priority.BATCH}))
        await client.submit(long)
        while (await client.queue.depth("scripted")).running < 2:
            await asyncio.sleep(0.01)
        for _ in range(12):
            await client.submit(long)
        await asyncio.sleep(0.5)
        running = (await client.queue.depth("scripted")).running
        assert running == 1 + 4 + 1, "the batch job, as many as it has places, and one ahead"


async def test_a_worker_that_has_just_filled_up_with_batch_jobs_takes_a_better_one_in_at_once(
    start_worker: StartWorker, client: Client, job: JobMaker
) -> None:
    """It looked for better jobs before it knew which class its own are of."""
    long = job("long", 2000)
    async with start_worker(model="scripted:ms_per_step=20", max_sequences=4):
        for _ in range(9):
            await client.submit(long.model_copy(update={"priority": Priority.BATCH}))
        while (await client.queue.depth("scripted")).running < 5:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        better = await client.submit(long)
        await asyncio.sleep(0.5)
        assert (await client.status(better.job_id)).started_ms > 0


def test_an_engine_that_can_run_only_those_who_stand_back_runs_them() -> None:
    """The one that they stand back for is held, for its reader: else nobody would ever go on."""
    thread = make_thread(Clock())
    thread.add("i", [spec("i", 0)])
    thread.add("b", [spec("b", 2)])
    while thread._inbox:
        thread._obey(thread._inbox.popleft())
    thread._engine.hold("i")
    seen: list[str] = []
    for _ in range(40):
        if not thread._has_runnable:
            break
        seen += [output.key.request_id for output in thread._step() if output.finish_reason]
    assert seen.count("b") == 1
    assert "i" not in seen


class Clock:
    """Ten milliseconds a look."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        self._now += 0.01
        return self._now
