"""A failed step takes the plan behind it along, and nobody who is not at fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.engine.asking import BANG, GREEDY, ask, run, text_of, tokens_of
from tests.engine.late import Early, Late, Launched, ahead_engine
from tests.engine.stepping import make_scheduler, planned, request

from headway.engine.errors import InvariantError, RequestError
from headway.engine.limits import StepLimits
from headway.engine.scripted import ScriptedRunner
from headway.engine.values import Chunk, FinishReason

DEVICES = pytest.mark.parametrize("thread", [Late, Early, Launched])


def failing(name: str, start: int) -> Callable[[Chunk], Exception | None]:
    return lambda c: RuntimeError("NaN") if c.key.request_id == name and c.start >= start else None


@DEVICES
@pytest.mark.parametrize("start", [0, 4, 8])
def test_a_failing_request_ends_alone_and_what_was_planned_behind_it_is_planned_again(
    start: int, thread: type[Late]
) -> None:
    runner = ScriptedRunner(fails=failing("bad", start))
    limits = StepLimits(max_step_tokens=12, max_sequences=3, min_chunk_tokens=4)
    engine = ahead_engine(runner, limits, thread=thread)
    for name in ("a", "bad", "b"):
        engine.add(ask(name, text=f"for {name}", max_tokens=10))
    outputs = run(engine)
    assert outputs["bad"][-1].finish_reason is FinishReason.ERROR
    for name in ("a", "b"):
        prompt = ask(text=f"for {name}").prompt_token_ids
        assert tokens_of(outputs[name]) == runner.reference(prompt, GREEDY, 10)


def test_nobody_waits_for_a_plan_that_was_thrown_away() -> None:
    def fails(chunk: Chunk) -> Exception | None:
        return RequestError("no such adapter") if chunk.key.request_id == "bad" and chunk.start == 2 else None

    engine = ahead_engine(ScriptedRunner(block_count=5, block_size=1, fails=fails))
    engine.add(ask("bad", text="", max_tokens=4))
    assert run(engine)["bad"][-1].finish_reason is FinishReason.ERROR
    # It had all blocks, and the step behind the one that failed was planned to touch them.
    engine.add(ask("next", text="", max_tokens=4))
    assert len(tokens_of(engine.step(0.0))) == 1


def test_a_step_ahead_that_fails_for_nobody_alive_ends_nobody() -> None:
    # Exactly the token that is not wanted any more.
    fails = failing("a", len(ask().prompt_token_ids) + 2)
    runner = ScriptedRunner(answer=lambda _: tuple(b"hi!"), fails=fails)
    engine = ahead_engine(runner)
    engine.add(ask(max_tokens=9, sampling=BANG))
    outputs = run(engine)["a"]
    assert (text_of(outputs), outputs[-1].finish_reason) == ("hi", FinishReason.STOP)


@DEVICES
def test_a_broken_device_is_raised_and_loses_nothing(thread: type[Late]) -> None:
    broken = False
    runner = ScriptedRunner(fails=lambda _: RuntimeError("device lost") if broken else None)
    engine = ahead_engine(runner, thread=thread)
    for name in "ab":
        engine.add(ask(name))
    outputs = list(engine.step(0.0))
    broken = True
    if thread is not Late:
        outputs += engine.step(0.0)
    for _ in range(3):
        with pytest.raises(RuntimeError, match="device lost"):
            engine.step(0.0)
        engine.check_books()
    broken = False
    for name, rest in run(engine).items():
        own = [output for output in outputs if output.key.request_id == name]
        assert tokens_of([*own, *rest]) == runner.reference(ask().prompt_token_ids, GREEDY, 8)


def test_a_placeholder_that_was_never_sampled_is_a_broken_engine() -> None:
    runner, scheduler = ScriptedRunner(), make_scheduler()
    scheduler.add(request("a"))
    first = planned(scheduler)
    second = scheduler.plan_ahead(first, 0.0)
    assert second is not None
    with pytest.raises(InvariantError, match="sampled no token for position"):
        runner.execute(replace(second, admitted=first.admitted))
