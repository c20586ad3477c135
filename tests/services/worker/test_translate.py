"""Claims become requests: clocks, seeds, limits and resumed choices."""

from __future__ import annotations

import itertools
from typing import Any

import orjson
import pytest

from headway.engine.checks import check_request
from headway.engine.errors import GrammarError
from headway.engine.scripted import ByteTokenizer, ScriptedRunner
from headway.engine.values import FinishReason, Objective, Output, RequestKey, RequestSpec, TextLogprobs
from headway.queueing.claims import Claim
from headway.queueing.events import Cursor, EndReason, TokenEvent
from headway.services.answer import Answer
from headway.services.translate import ModelSide, Prepared, Refusal, prepare, take_output


def accept_all(spec: RequestSpec) -> None:
    del spec


MODEL = ModelSide("scripted", ByteTokenizer(), 64, accept_all)


def claim(body: dict[str, Any] | bytes, **changes: Any) -> Claim:
    fields: dict[str, Any] = {
        "job_id": "scripted:0:abc",
        "token": "t",
        "epoch": 3,
        "attempts": 1,
        "body": body if isinstance(body, bytes) else orjson.dumps({"model": "scripted", **body}),
        "committed": (),
        "seed": 42,
        "created_ms": 10_000,
        "deadline_ms": 0,
        "now_ms": 12_500,
        "cancel_reason": None,
    }
    return Claim(**{**fields, **changes})


def prepared(body: dict[str, Any], **changes: Any) -> Prepared:
    outcome = prepare(claim(body, **changes), MODEL, 100.0)
    assert isinstance(outcome, Prepared)
    return outcome


def refused(body: dict[str, Any] | bytes, **changes: Any) -> Refusal:
    outcome = prepare(claim(body, **changes), MODEL, 100.0)
    assert isinstance(outcome, Refusal)
    return outcome


def test_the_servers_clock_is_mapped_to_the_engines() -> None:
    (spec,) = prepared({"prompt": "hi"}, deadline_ms=15_000).specs
    assert spec.arrival_seconds == 97.5, "accepted 2.5 s before the claim"
    assert spec.deadline_seconds == 102.5, "2.5 s are left"
    assert prepared({"prompt": "hi"}).specs[0].deadline_seconds is None


def test_a_wish_for_a_deadline_and_an_objective_reach_the_engine() -> None:
    wish = {"prompt": "hi", "deadline_seconds": 60, "demotable": True}
    (spec,) = prepared(wish | {"objective": {"ttft_seconds": 2, "tpot_seconds": 0.5}}).specs
    assert (spec.deadline_seconds, spec.is_demotable) == (157.5, True), "60 s from acceptance"
    assert spec.objective == Objective(2.0, 0.5)
    (plain,) = prepared({"prompt": "hi"}).specs
    assert (plain.is_demotable, plain.objective) == (False, None)


def test_each_choice_draws_with_its_own_seed_the_same_on_every_worker() -> None:
    first, again = (prepared({"prompt": "hi", "sampling": {"n": 16}}) for _ in range(2))
    seeds = [spec.sampling.seed for spec in first.specs]
    assert seeds[0] == 42, "n=1 and the first of many draw alike"
    assert len(set(seeds)) == 16
    assert seeds == [spec.sampling.seed for spec in again.specs]
    negative = prepared({"prompt": "hi"}, seed=-7).specs[0].sampling.seed
    assert 0 <= negative < 2**63


def test_all_choices_but_the_first_branch_off_it() -> None:
    specs = prepared({"prompt": "hi", "sampling": {"n": 3}}).specs
    assert [spec.fork_of for spec in specs] == [None, specs[0].request_id, specs[0].request_id]


def test_requests_are_named_after_job_and_choice_under_the_claims_epoch() -> None:
    specs = prepared({"prompt": "hi", "sampling": {"n": 2}}).specs
    assert [(spec.request_id, spec.epoch) for spec in specs] == [
        ("scripted:0:abc#0", 3),
        ("scripted:0:abc#1", 3),
    ]


def test_choices_that_ended_are_not_run_again_and_the_others_keep_their_tokens() -> None:
    committed = (
        TokenEvent(Cursor(1), 0, "a", (97,)),
        TokenEvent(Cursor(3), 1, "bc", (98, 99), finish_reason=EndReason.STOP),
        TokenEvent(Cursor(4), 0, "d", (100,)),
    )
    outcome = prepared({"prompt": "hi", "sampling": {"n": 2}}, committed=committed)
    (spec,) = outcome.specs
    assert spec.request_id.endswith("#0")
    assert spec.generated_token_ids == (97, 100)
    assert outcome.answer.resumed_tokens == 4


@pytest.mark.parametrize(
    ("prompt", "asked", "limit"),
    [("12345", None, 58), ("12345", 58, 58), ("12345", 10, 10), ("x" * 62, None, 1)],
)
def test_without_a_limit_the_answer_gets_what_the_context_leaves(
    prompt: str, asked: int | None, limit: int
) -> None:
    (spec,) = prepared({"prompt": prompt, "sampling": {"max_tokens": asked}}).specs
    assert spec.max_tokens == limit


@pytest.mark.parametrize(
    ("body", "code", "param", "word"),
    [
        ({"prompt": "x" * 63}, "context_length_exceeded", "prompt", "at most 63 tokens"),
        ({"prompt": "x", "sampling": {"max_tokens": 63}}, "context_length_exceeded", "prompt", "at most 62"),
        ({"messages": [{"role": "user", "content": "y" * 99}]}, "context_length_exceeded", "messages", "64"),
    ],
)
def test_what_never_fits_is_refused_with_the_numbers(
    body: dict[str, Any], code: str, param: str, word: str
) -> None:
    refusal = refused(body)
    assert (refusal.error.code, refusal.error.param, refusal.dead_letter) == (code, param, None)
    assert word in refusal.error.message


def test_a_broken_body_is_also_a_dead_letter() -> None:
    for body in (b"", b"[]", b'{"model": "scripted"}', b'{"model": "other", "prompt": "x"}', b"\xff"):
        refusal = refused(body)
        assert (refusal.error.code, refusal.dead_letter) == ("invalid_job", "invalid_job")
    assert refused(b" " * (2 << 20)).dead_letter == "job_too_large"


def test_a_body_that_changed_its_number_of_choices_is_refused() -> None:
    committed = (TokenEvent(Cursor(1), 3, "a", (97,)),)
    assert refused({"prompt": "hi"}, committed=committed).error.param == "sampling.n"


def test_every_finish_reason_has_its_end_reason() -> None:
    for reason in FinishReason:
        answer = Answer(1)
        output = Output(RequestKey("j#0", 1), "", (), finish_reason=reason, error_message="why")
        error = take_output(answer, output, MODEL.tokenizer)
        assert answer.finish_reason(0) == EndReason(reason.value)
        # A deadline comes with words where it was found out of reach, not where it passed.
        assert (error is not None) == (reason in (FinishReason.ERROR, FinishReason.DEADLINE))


def test_logprobs_name_special_tokens_and_show_raw_bytes() -> None:
    answer = Answer(1)
    logprobs = TextLogprobs((195, b"\xc3", -0.5), ((195, b"\xc3", -0.5), (257, b"", -2.0)))
    take_output(answer, Output(RequestKey("j#0", 1), "", (195,), (logprobs,)), MODEL.tokenizer)
    (entry,) = itertools.chain(*(event.logprobs for event in answer.seal()))
    assert (entry.text, entry.raw) == ("\ufffd", b"\xc3")
    assert [(top.text, top.raw) for top in entry.top] == [("\ufffd", b"\xc3"), ("<|eos|>", b"")]


@pytest.mark.parametrize(
    ("constraint", "grammar_holds"),
    [
        ({"json_schema": {"type": "integer"}}, '"integer"'),
        ({"regex": "[a-z]+"}, "[a-z]+"),
        ({"choice": ["yes", "no"]}, "yes"),
        ({"grammar": 'root ::= "a" | "b"'}, "start"),
    ],
)
def test_a_form_reaches_the_engine_with_each_choice(constraint: dict[str, Any], grammar_holds: str) -> None:
    specs = prepared({"prompt": "hi", "constraint": constraint, "sampling": {"n": 2}}).specs
    first, second = (spec.sampling.grammar for spec in specs)
    assert first == second
    assert first is not None
    assert grammar_holds in first
    assert prepared({"prompt": "hi"}).specs[0].sampling.grammar is None


def test_a_form_that_nobody_can_hold_ends_a_raw_producers_job_with_its_reason() -> None:
    unreadable = refused({"prompt": "hi", "constraint": {"grammar": "root ::= ("}}).error
    assert (unreadable.code, unreadable.param) == ("invalid_grammar", "constraint.grammar")
    assert unreadable.is_callers_fault

    def says_no(spec: RequestSpec) -> None:
        raise GrammarError("no answer can be held to this form: too much")

    outcome = prepare(
        claim({"prompt": "hi", "constraint": {"regex": "a"}}),
        ModelSide("scripted", ByteTokenizer(), 64, says_no),
        100.0,
    )
    assert isinstance(outcome, Refusal)
    assert outcome.error.param == "constraint.regex"
    assert outcome.dead_letter is None, "its producer is answered"


@pytest.mark.parametrize(
    ("asked", "code", "param"),
    [
        ({"constraint": {"choice": ["a"]}}, "unsupported", "constraint.choice"),
        ({"sampling": {"stop_token_ids": [9999]}}, "invalid_token_id", "sampling.stop_token_ids"),
        ({"sampling": {"logit_bias": {"9999": 1}}}, "invalid_token_id", "sampling.logit_bias"),
        ({"sampling": {"min_tokens": 63}}, "invalid_job", "sampling.min_tokens"),
        ({"prompt": None, "prompt_token_ids": [9999]}, "invalid_token_id", "prompt_token_ids"),
    ],
)
def test_whatever_this_model_cannot_do_is_refused_with_the_field_that_asks_for_it(
    asked: dict[str, Any], code: str, param: str
) -> None:
    runner = ScriptedRunner(max_model_len=64)  # holds nothing to a form
    model = ModelSide("scripted", ByteTokenizer(), 64, lambda spec: check_request(spec, runner))
    outcome = prepare(claim({"prompt": "hi"} | asked), model, 100.0)
    assert isinstance(outcome, Refusal)
    assert (outcome.error.code, outcome.error.param) == (code, param)
