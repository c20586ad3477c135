"""The engine as a worker sees it: what is refused, how answers end, resume, cancel, and one bad request."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from headway.engine.engine import Engine
from headway.engine.errors import (
    ContextLengthError,
    EngineFullError,
    InvalidTokenError,
    InvariantError,
    RequestError,
)
from headway.engine.limits import StepLimits
from headway.engine.policy import Fcfs
from headway.engine.scripted import EOS, ByteTokenizer, ScriptedRunner
from headway.engine.values import Chunk, FinishReason, Output, RequestKey, RequestSpec, Sampling

GREEDY = Sampling(temperature=0)
BANG = Sampling(temperature=0, stop_token_ids=frozenset(b"!"))
TOKENIZER = ByteTokenizer()


def make_engine(runner: ScriptedRunner | None = None, limits: StepLimits | None = None) -> Engine:
    return Engine(runner or ScriptedRunner(), TOKENIZER, limits=limits or StepLimits(), policy=Fcfs())


def saying(text: str | bytes) -> ScriptedRunner:
    """A runner that answers every prompt with this text, then EOS."""
    answer = text.encode() if isinstance(text, str) else text
    return ScriptedRunner(answer=lambda _: tuple(answer))


def ask(
    name: str = "a", text: str = "hello", max_tokens: int = 8, sampling: Sampling = GREEDY
) -> RequestSpec:
    prompt = TOKENIZER.encode(text, add_special_tokens=True)
    return RequestSpec(name, 0, prompt, sampling, max_tokens)


def run(engine: Engine, now: float = 0.0) -> dict[str, list[Output]]:
    """Step to the end; all outputs by request."""
    outputs: dict[str, list[Output]] = {}
    while engine.has_work:
        for output in engine.step(now):
            outputs.setdefault(output.key.request_id, []).append(output)
        engine.check_books()
    assert engine.load.kv_blocks_used == 0
    return outputs


def run_one(engine: Engine, spec: RequestSpec) -> tuple[str, tuple[int, ...], FinishReason | None]:
    engine.add(spec)
    outputs = run(engine)[spec.request_id]
    assert [output.finish_reason for output in outputs[:-1]] == [None] * (len(outputs) - 1)
    return text_of(outputs), tokens_of(outputs), outputs[-1].finish_reason


def text_of(outputs: Sequence[Output]) -> str:
    return "".join(output.text for output in outputs)


def tokens_of(outputs: Sequence[Output]) -> tuple[int, ...]:
    return tuple(token for output in outputs for token in output.token_ids)


# -- What is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [31, 32])
def test_prompt_and_answer_up_to_the_context_length_run(length: int) -> None:
    engine = make_engine(ScriptedRunner(max_model_len=32))
    spec = ask(text="x" * 19, max_tokens=length - 20)
    assert len(run_one(engine, spec)[1]) == length - 20


def test_one_token_over_the_context_length_is_refused_with_the_numbers_and_the_engine_lives() -> None:
    engine = make_engine(ScriptedRunner(max_model_len=32))
    spec = ask(text="x" * 19, max_tokens=13)
    with pytest.raises(
        ContextLengthError, match=r"20 tokens .* 13, together 33, .* holds 32: lower max_tokens to 12"
    ):
        engine.add(spec)
    assert not engine.has_work
    assert len(run_one(engine, replace(spec, max_tokens=12))[1]) == 12


def test_a_prompt_that_fills_the_context_alone_is_told_its_limit() -> None:
    engine = make_engine(ScriptedRunner(max_model_len=32))
    with pytest.raises(ContextLengthError, match="shorten the prompt to at most 31 tokens"):
        engine.check(ask(text="x" * 31, max_tokens=1))


@pytest.mark.parametrize("over", [0, 1])
def test_a_request_larger_than_the_pool_is_refused_and_the_engine_lives(over: int) -> None:
    engine = make_engine(ScriptedRunner(block_count=4, block_size=4))
    spec = ask(text="x" * 9, max_tokens=6 + over)
    if over:
        with pytest.raises(ContextLengthError, match=r"5 KV blocks, but this worker has 4 of 4 tokens"):
            engine.add(spec)
        spec = replace(spec, max_tokens=6)
    assert len(run_one(engine, spec)[1]) == 6


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt_token_ids": ()}, "no tokens"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"sampling": Sampling(min_tokens=9)}, r"min_tokens \(9\) is above max_tokens \(8\)"),
        ({"stop_strings": ("x", "")}, "a stop string is empty"),
    ],
)
def test_requests_that_make_no_sense_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        make_engine().add(replace(ask(), **change))  # type: ignore[arg-type]  # one field of any type per case


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"prompt_token_ids": (1, 260)}, "prompt_token_ids holds 260 at place 1; .* 0 to 259"),
        ({"prompt_token_ids": (-1,)}, "holds -1"),
        ({"generated_token_ids": (300,)}, "generated_token_ids holds 300"),
        ({"sampling": Sampling(stop_token_ids=frozenset({260}))}, "stop_token_ids holds 260"),
        ({"sampling": Sampling(logit_bias=((260, 1.0),))}, "logit_bias holds 260"),
    ],
)
def test_token_ids_outside_the_vocabulary_are_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidTokenError, match=words):
        make_engine().check(replace(ask(), **change))  # type: ignore[arg-type]  # one field of any type per case


def test_a_refused_duplicate_does_not_disturb_the_live_request() -> None:
    runner = ScriptedRunner()
    engine = make_engine(runner)
    engine.add(ask())
    first = engine.step(0.0)
    with pytest.raises(RequestError, match="is live"):
        engine.add(ask(text="other"))
    outputs = [*first, *run(engine)["a"]]
    assert tokens_of(outputs) == runner.reference(ask().prompt_token_ids, GREEDY, 8)


def test_a_full_line_refuses_and_leaves_nothing_behind() -> None:
    engine = make_engine(limits=StepLimits(max_waiting=1))
    engine.add(ask("a"))
    with pytest.raises(EngineFullError):
        engine.add(ask("b"))
    engine.check_books()
    assert run(engine).keys() == {"a"}


# -- How answers end -------------------------------------------------------------------------------


def test_the_answer_stops_at_max_tokens() -> None:
    text, tokens, reason = run_one(make_engine(saying("hello world")), ask(max_tokens=5))
    assert (text, len(tokens), reason) == ("hello", 5, FinishReason.LENGTH)


def test_eos_is_a_token_without_text() -> None:
    text, tokens, reason = run_one(make_engine(saying("hi")), ask())
    assert (text, tokens, reason) == ("hi", (*b"hi", EOS), FinishReason.STOP)


def test_eos_does_not_end_an_answer_that_ignores_it() -> None:
    spec = ask(sampling=replace(GREEDY, ignore_eos=True), max_tokens=5)
    text, tokens, reason = run_one(make_engine(saying("hi")), spec)
    assert (text, tokens, reason) == ("hi", (*b"hi", EOS, EOS, EOS), FinishReason.LENGTH)


def test_a_stop_token_is_a_token_without_text() -> None:
    spec = ask(sampling=BANG)
    assert run_one(make_engine(saying("hi! you")), spec) == ("hi", tuple(b"hi!"), FinishReason.STOP)


def test_stop_tokens_do_not_end_an_answer_before_min_tokens() -> None:
    spec = ask(sampling=replace(GREEDY, stop_token_ids=frozenset(b"!"), min_tokens=3))
    assert run_one(make_engine(saying("!!!!")), spec) == ("!!!", tuple(b"!!!!"), FinishReason.STOP)


def test_a_stop_string_ends_the_answer_and_is_not_shown() -> None:
    spec = replace(ask(max_tokens=50), stop_strings=("END", "never"))
    engine = make_engine(saying("one EN two END three"))
    assert run_one(engine, spec) == ("one EN two ", tuple(b"one EN two END"), FinishReason.STOP)


def test_a_stop_string_waits_for_min_tokens() -> None:
    spec = replace(ask(sampling=replace(GREEDY, min_tokens=4), max_tokens=50), stop_strings=("ab",))
    assert run_one(make_engine(saying("ababab")), spec)[::2] == ("abab", FinishReason.STOP)


def test_a_stop_string_completed_by_the_last_allowed_token_is_a_stop() -> None:
    spec = replace(ask(max_tokens=3), stop_strings=("c",))
    assert run_one(make_engine(saying("abc")), spec) == ("ab", tuple(b"abc"), FinishReason.STOP)


def test_a_possible_stop_string_is_held_back_and_released_by_the_end() -> None:
    engine = make_engine(saying("go EN"))
    engine.add(replace(ask(), stop_strings=("END",)))
    outputs = run(engine)["a"]
    assert [output.text for output in outputs] == ["g", "o", " ", "", "", "EN"]
    assert [output.tail for output in outputs] == ["", "", "", "", "", "EN"]
    assert outputs[-1].token_ids == (EOS,)


def test_characters_are_shown_whole() -> None:
    engine = make_engine(saying("é€😀"))
    engine.add(ask(max_tokens=20))
    assert [o.text for o in run(engine)["a"]] == ["", "é", "", "", "€", "", "", "", "😀", ""]


def test_the_last_output_shows_half_a_character_as_a_replacement() -> None:
    engine = make_engine(saying("é"))
    engine.add(ask(max_tokens=1))
    (output,) = run(engine)["a"]
    assert (output.text, output.tail, output.finish_reason) == ("\ufffd", "\ufffd", FinishReason.LENGTH)


def test_logprobs_name_each_token_by_its_bytes() -> None:
    engine = make_engine()
    engine.add(ask(sampling=replace(GREEDY, logprobs=3), max_tokens=4))
    outputs = run(engine)["a"]
    for output in outputs:
        (logprobs,) = output.logprobs
        (token_id,) = output.token_ids
        assert logprobs.chosen == (token_id, bytes((token_id,)), -math.log(2))
        assert len(logprobs.top) == 3
        assert logprobs.top[0] == logprobs.chosen
    assert len(outputs) == 4


def test_a_deadline_ends_a_running_answer_within_one_step_with_what_it_has() -> None:
    engine = make_engine(saying("hello EN world"))
    engine.add(replace(ask(max_tokens=50), deadline_seconds=5.0, stop_strings=("END",)))
    early = [output for _ in range(8) for output in engine.step(4.9)]
    (last,) = engine.step(5.0)
    assert text_of(early) == "hello "
    assert (last.text, last.token_ids, last.finish_reason) == ("EN", (), FinishReason.DEADLINE)
    assert not engine.has_work


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
