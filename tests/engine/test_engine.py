"""The engine as a worker sees it: what is refused, and how answers end."""

from __future__ import annotations

import math
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
    ContextLengthError,
    EngineFullError,
    InvalidTokenError,
    RequestError,
)
from headway.engine.limits import StepLimits
from headway.engine.scripted import EOS, ScriptedRunner
from headway.engine.values import FinishReason, Sampling

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
