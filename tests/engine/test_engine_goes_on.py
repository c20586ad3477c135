"""The engine goes on: answers resumed, requests cancelled, and one bad request among good ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from tests.engine.asking import (
    BANG,
    GREEDY,
    ask,
    make_engine,
    run,
    run_one,
    saying,
    text_of,
    tokens_of,
)

from headway.engine.errors import (
    InvariantError,
    RequestError,
)
from headway.engine.limits import StepLimits
from headway.engine.scripted import EOS, ScriptedRunner
from headway.engine.values import Chunk, FinishReason, RequestKey, Sampling

# -- Resume ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", range(13))
@pytest.mark.parametrize("stops", [(), ("END",), ("N", "END!")])
def test_an_answer_resumed_after_any_token_goes_on_with_exactly_the_rest(
    kept: int, stops: tuple[str, ...]
) -> None:
    """Text with half characters and near stop strings: the tails are held back by whoever owns the answer."""
    said = "é EE€ENEND 😀".encode()
    spec = replace(ask(max_tokens=13), stop_strings=stops)
    whole_engine = make_engine(saying(said))
    whole_engine.add(spec)
    whole = run(whole_engine)["a"]
    before = whole[:kept]
    resumed = make_engine(saying(said))
    resumed.add(replace(spec, epoch=1, generated_token_ids=tokens_of(before)))
    after = run(resumed)["a"]
    # What a last entry released by its end counts only if the end was published too.
    shown = "".join(output.text.removesuffix(output.tail) for output in before)
    assert shown + text_of(after) == text_of(whole)
    assert tokens_of(before) + tokens_of(after) == tokens_of(whole)
    assert after[-1].finish_reason == whole[-1].finish_reason


def test_a_resumed_answer_continues_the_same_draws() -> None:
    runner = ScriptedRunner()
    sampling = Sampling(temperature=1.0, seed=1234)
    spec = ask(sampling=sampling, max_tokens=12)
    whole = runner.reference(spec.prompt_token_ids, sampling, 12)
    engine = make_engine(runner)
    assert run_one(engine, replace(spec, epoch=1, generated_token_ids=whole[:5]))[1] == whole[5:]


@pytest.mark.parametrize(
    ("kept", "change", "reason", "tail"),
    [
        (b"hello", {"max_tokens": 5}, FinishReason.LENGTH, ""),
        (b"go EN", {"max_tokens": 5, "stop_strings": ("END",)}, FinishReason.LENGTH, "EN"),
        (b"hello END", {"stop_strings": ("END",)}, FinishReason.STOP, ""),
        (b"hello END", {"stop_strings": ("END",), "max_tokens": 9}, FinishReason.STOP, ""),
        ((*b"hi", EOS), {}, FinishReason.STOP, ""),
        (b"EN!", {"sampling": BANG, "stop_strings": ("END",)}, FinishReason.STOP, "EN"),
    ],
)
def test_a_resumed_answer_that_is_complete_ends_at_once_without_a_new_token(
    kept: Sequence[int], change: dict[str, object], reason: FinishReason, tail: str
) -> None:
    runner = ScriptedRunner()
    runner.steps = []
    engine = make_engine(runner)
    spec = replace(ask(max_tokens=20), generated_token_ids=tuple(kept))
    engine.add(replace(spec, **change))  # type: ignore[arg-type]  # one field of any type per case
    (output,) = engine.step(0.0)
    assert (output.text, output.tail, output.token_ids, output.finish_reason) == (tail, tail, (), reason)
    assert runner.steps == []
    assert not engine.has_work


# -- Cancel ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("held", [False, True])
def test_a_cancel_in_every_phase_gives_the_blocks_back_once(steps: int, held: bool) -> None:
    """Waiting, in the middle of the prefill, at its end, decoding; each also while held."""
    engine = make_engine(limits=StepLimits(max_step_tokens=4, max_sequences=4))
    engine.add(ask(text="hello worl", max_tokens=20))
    before = [output for _ in range(steps) for output in engine.step(0.0)]
    if held:
        engine.hold("a")
    engine.cancel("a", FinishReason.CANCELLED)
    engine.cancel("a", FinishReason.CANCELLED)
    after = run(engine)["a"]
    assert [(o.token_ids, o.finish_reason) for o in after] == [((), FinishReason.CANCELLED)]
    assert all(output.finish_reason is None for output in before)


def test_a_cancelled_request_frees_its_blocks_within_two_steps_while_others_go_on() -> None:
    engine = make_engine(ScriptedRunner(block_size=1))
    engine.add(ask("stays", max_tokens=50))
    engine.add(ask("goes", max_tokens=50))
    for _ in range(5):
        engine.step(0.0)
    engine.cancel("goes", FinishReason.CANCELLED)
    outputs = [*engine.step(0.0), *engine.step(0.0)]
    assert [o.finish_reason for o in outputs if o.key.request_id == "goes"] == [FinishReason.CANCELLED]
    # 6 prompt tokens and 7 answered; the last token's KV is not computed yet.
    assert engine.load.kv_blocks_used == 6 + 7 - 1


def test_a_storm_of_cancels_is_followed_by_normal_service() -> None:
    runner = ScriptedRunner(block_count=32, block_size=4)
    engine = make_engine(runner, StepLimits(max_sequences=8))
    for place in range(300):
        engine.add(ask(f"r{place}", max_tokens=20))
        if place % 3 == 0:
            engine.step(0.0)
    for place in range(300):
        engine.cancel(f"r{place}", FinishReason.CANCELLED)
        engine.cancel(f"ghost{place}", FinishReason.CANCELLED)
    run(engine)
    spec = ask("after")
    assert run_one(engine, spec)[1] == runner.reference(spec.prompt_token_ids, GREEDY, 8)
    assert runner.known_requests <= 8


# -- One bad request -------------------------------------------------------------------------------


def failing(name: str, error: Exception, start: int = 0) -> Callable[[Chunk], Exception | None]:
    return lambda chunk: error if chunk.key.request_id == name and chunk.start >= start else None


@pytest.mark.parametrize("start", [0, 4, 8])
def test_a_failing_request_ends_alone_and_the_others_lose_nothing(start: int) -> None:
    """In the first chunk, in a later one, while decoding."""
    runner = ScriptedRunner(fails=failing("bad", RuntimeError("NaN in layer 3"), start))
    engine = make_engine(runner, StepLimits(max_step_tokens=12, max_sequences=3, min_chunk_tokens=4))
    for name in ("a", "bad", "b"):
        engine.add(ask(name, text=f"for {name}", max_tokens=10))
    outputs = run(engine)
    assert outputs["bad"][-1].finish_reason is FinishReason.ERROR
    assert outputs["bad"][-1].error_message == "NaN in layer 3"
    for name in ("a", "b"):
        prompt = ask(text=f"for {name}").prompt_token_ids
        assert tokens_of(outputs[name]) == runner.reference(prompt, GREEDY, 10)
        assert outputs[name][-1].finish_reason is FinishReason.LENGTH
    engine.add(ask("later"))
    engine.step(0.0)
    assert runner.known_requests == 1


def test_what_a_failed_step_had_to_forget_is_forgotten_all_the_same() -> None:
    runner = ScriptedRunner(fails=failing("bad", RuntimeError("x")))
    engine = make_engine(runner)
    for name in ("gone", "stays"):
        engine.add(ask(name, max_tokens=20))
    engine.step(0.0)
    engine.cancel("gone", FinishReason.CANCELLED)
    engine.add(ask("bad"))
    outputs = [*engine.step(0.0), *engine.step(0.0)]
    assert {o.key.request_id for o in outputs if o.finish_reason is not None} == {"gone", "bad"}
    assert runner.known_requests == 1
    assert len(tokens_of(run(engine)["stays"])) == 17


def test_an_error_that_hits_every_request_is_raised_and_loses_nothing() -> None:
    broken = True
    runner = ScriptedRunner(fails=lambda _: RuntimeError("device lost") if broken else None)
    engine = make_engine(runner)
    engine.add(ask("a"))
    engine.add(ask("b"))
    for _ in range(3):
        with pytest.raises(RuntimeError, match="device lost"):
            engine.step(0.0)
        engine.check_books()
    broken = False
    assert [tokens_of(outputs) for outputs in run(engine).values()] == [
        runner.reference(ask().prompt_token_ids, GREEDY, 8)
    ] * 2


def test_a_request_that_the_runner_itself_refuses_ends_even_when_it_is_alone() -> None:
    engine = make_engine(ScriptedRunner(fails=failing("a", RequestError("no such adapter"))))
    text, tokens, reason = run_one(engine, ask())
    assert (text, tokens, reason) == ("", (), FinishReason.ERROR)


def test_a_runner_whose_books_are_wrong_is_never_covered_up() -> None:
    engine = make_engine(ScriptedRunner(fails=failing("bad", InvariantError("slot 7 written twice"))))
    engine.add(ask("bad"))
    engine.add(ask("a"))
    with pytest.raises(InvariantError, match="slot 7"):
        engine.step(0.0)


def test_a_step_of_failures_that_sleeps_is_counted_in_seconds() -> None:
    slept: list[float] = []
    runner = ScriptedRunner(cost=lambda _: 0.5, sleep=slept.append, fails=failing("bad", RuntimeError("x")))
    engine = make_engine(runner)
    for name in ("a", "bad", "b"):
        engine.add(ask(name))
    engine.step(0.0)
    assert slept == [0.5, 0.5]
    assert (engine.load.last_step_seconds, engine.load.steps) == (1.0, 1)


def test_an_idle_engine_steps_to_nothing() -> None:
    engine = make_engine()
    assert engine.step(0.0) == ()
    assert (engine.has_work, engine.has_runnable, engine.next_deadline, engine.load.steps) == (
        False,
        False,
        None,
        0,
    )


def test_outputs_carry_the_epoch_they_belong_to() -> None:
    engine = make_engine()
    engine.add(replace(ask(), epoch=4))
    engine.step(0.0)
    engine.add(replace(ask(), epoch=5))
    assert {output.key for output in run(engine)["a"]} == {RequestKey("a", 5)}
