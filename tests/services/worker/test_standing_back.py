"""Batch requests stand back while somebody waits for a first token, and never for long."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from headway.engine.engine import Engine
from headway.engine.fair import FairPolicy
from headway.engine.limits import StepLimits
from headway.engine.scripted import ByteTokenizer, ScriptedRunner
from headway.engine.values import RequestSpec, Sampling
from headway.queueing.messages import Priority
from headway.services.engine_thread import EngineThread
from headway.services.standing_back import (
    BATCH_BAND,
    LATELY_SECONDS,
    LONGEST_SECONDS,
    SHORT_STEP_SECONDS,
    StandingBack,
)
from headway.services.translate import BAND

LIMITS = StepLimits()


def spec(name: str, priority: int, tokens: int = 8) -> RequestSpec:
    return RequestSpec(name, 0, tuple(b"prompt"), Sampling(), tokens, priority=priority)


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
    assert set(back.begin(1.3).freed) == {"b1", "b3"}
    assert not back.is_holding


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
    short = back.begin(1.1).limits
    assert short == replace(LIMITS, max_gap_seconds=SHORT_STEP_SECONDS, max_step_seconds=SHORT_STEP_SECONDS)
    assert back.begin(1.2).limits is None
    assert back.begin(1.1 + LATELY_SECONDS).limits == LIMITS
    back.opened(spec("i2", 0), 20.0)
    back.answered("i2")
    assert back.begin(20.0).limits == short
    back.closed("b")
    assert back.begin(20.1).limits == LIMITS


def test_an_engine_that_can_run_only_those_who_stand_back_runs_them() -> None:
    """The one that they stand back for is held, for its reader: else nobody would ever go on."""
    engine = Engine(ScriptedRunner(), ByteTokenizer(), limits=LIMITS, policy=FairPolicy())
    thread = EngineThread(
        engine,
        notify=lambda: None,
        observe_step=lambda _: None,
        clock=Clock(),
        unacknowledged_tokens=1000,
    )
    thread.add("i", [spec("i", 0)])
    thread.add("b", [spec("b", 2)])
    while thread._inbox:
        thread._obey(thread._inbox.popleft())
    engine.hold("i")
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
