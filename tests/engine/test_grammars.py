"""Forms become grammars: what is refused, what is kept, and states that follow from tokens and places."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher
from tests.engine.constrained import FORMS, AnyBytes

from headway.engine import grammars as grammars_module
from headway.engine.errors import GrammarError, InvariantError
from headway.engine.grammar_source import grammar_source, json_schema_source, reason_of, refusal, regex_source
from headway.engine.grammar_state import GrammarState
from headway.engine.grammars import Grammars
from headway.engine.scripted import EOS
from headway.engine.token_masks import MaskMaker, MaskWish, StepMasks
from headway.engine.values import Sampling

ENDS = AnyBytes.eos_token_ids
ANSWER = json.dumps({"name": "Ada", "age": 36, "tags": ["new"]}).encode()


def made() -> Grammars:
    return Grammars(AnyBytes, vocab_size=300, end_token_ids=frozenset({EOS}))


GRAMMARS = made()
MAKER = MaskMaker(GRAMMARS, beside=True)


def masks(
    state: GrammarState, sampling: Sampling | None = None, index: int = 0, guesses: bytes = b""
) -> StepMasks:
    begun = MAKER.begin([MaskWish(state, sampling or Sampling(), index, tuple(guesses))])
    begun.wait()
    return begun


def allowed(state: GrammarState, sampling: Sampling | None = None, index: int = 0) -> set[int]:
    return {int(token) for token in np.flatnonzero(~masks(state, sampling, index).forbidden(0))}


@given(st.lists(st.tuples(st.integers(-4, len(ANSWER)), st.integers(0, 12)), max_size=12), st.data())
@settings(max_examples=60, deadline=None)
def test_a_state_follows_from_tokens_and_places_however_often_they_are_told(
    pieces: list[tuple[int, int]], data: st.DataObject
) -> None:
    source = FORMS["schema"].source
    told = data.draw(st.integers(0, len(ANSWER)))
    state = GRAMMARS.start(source, ANSWER[:told])
    known = told
    for start, length in pieces:
        tokens = (b"    "[: max(0, -start)] + ANSWER[max(0, start) :])[:length]
        if start > known:
            with pytest.raises(InvariantError):
                state.tell(start, tokens or b"x")
            continue
        state.tell(start, tokens)
        known = max(known, start + len(tokens))
        assert allowed(state) == allowed(GRAMMARS.start(source, ANSWER[:known]))


def test_rows_behind_guesses_are_masked_as_if_they_were_told() -> None:
    source, guesses = FORMS["schema"].source, ANSWER[1:9]
    begun = masks(GRAMMARS.start(source, ANSWER[:1]), guesses=guesses)
    for place in range(len(guesses) + 1):
        alone = allowed(GRAMMARS.start(source, ANSWER[: 1 + place]))
        assert {int(token) for token in np.flatnonzero(~begun.forbidden(place))} == alone


def test_a_wrong_guess_leaves_the_state_where_it_was() -> None:
    state = GRAMMARS.start(FORMS["schema"].source, ANSWER[:1])
    before = allowed(state)
    masks(state, guesses=b'"x')
    assert allowed(state) == before


def test_ends_are_held_off_as_long_as_anything_else_may_come() -> None:
    state = GRAMMARS.start(regex_source("a{1,3}"), b"a")
    assert allowed(state) == {ord("a"), *ENDS}
    assert allowed(state, Sampling(min_tokens=5), 1) == {ord("a")}
    assert allowed(state, Sampling(ignore_eos=True)) == {ord("a")}
    assert allowed(state, Sampling(min_tokens=1), 1) == {ord("a"), *ENDS}
    whole = GRAMMARS.start(regex_source("a{1,3}"), b"aaa")
    assert allowed(whole, Sampling(min_tokens=5, ignore_eos=True), 3) == ENDS


def test_the_only_token_that_may_come_is_known_without_the_model() -> None:
    assert masks(GRAMMARS.start(regex_source("abc|abd"), b"a")).wait().forced == {0: ord("b")}
    assert masks(GRAMMARS.start(regex_source("abc|abd"), b"ab")).wait().forced == {}
    for token in (0, 31, 32, 127):
        assert masks(GRAMMARS.start(regex_source(f"\\x{token:02x}x"), b"")).wait().forced == {0: token}


def test_an_end_in_the_tokens_of_a_step_under_way_is_no_mistake() -> None:
    state = GRAMMARS.start(regex_source("ab"), b"ab")
    state.tell(2, (EOS,))
    assert len(allowed(state)) == 300, "nobody wants what comes behind it"


def test_tokens_that_leave_the_form_are_told_as_such() -> None:
    with pytest.raises(GrammarError, match="cannot be held to its form any longer"):
        masks(GRAMMARS.start(FORMS["schema"].source, b"[1]"))


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('{"a":1}', True),
        ('{"a": 1}', True),
        (json.dumps({"a": [1, {"b": 2}]}, indent=4), True),
        (json.dumps({"a": [1, {"b": 2}]}, indent="\t"), True),
        ('{  "a":1}', False),
        ('{\n\n"a":1}', False),
        ('{ \n "a":1}', False),
        ("{\n" + 33 * " " + '"a":1}', False),
        (' {"a":1}', False),
    ],
)
def test_blanks_between_parts_are_those_of_usual_layouts_and_no_more(text: str, fits: bool) -> None:
    state = GRAMMARS.start(json_schema_source({"type": "object"}), text.encode())
    try:
        ends = bool(ENDS & allowed(state))
    except GrammarError:
        ends = False
    assert ends == fits


def test_an_unknown_format_is_an_annotation_and_a_property_of_that_name_is_none() -> None:
    schema = {"properties": {"format": {"type": "string", "format": "password"}}, "required": ["format"]}
    assert refusal(json_schema_source(schema)) is None
    kept: dict[str, Any] = {"type": "string", "format": "date"}
    assert '"date"' in json_schema_source(kept)
    assert refusal(json_schema_source({"enum": [{"format": "password"}]})) is None


def test_the_reason_names_what_a_regex_does_wrong() -> None:
    assert "unclosed character class" in str(refusal(regex_source("ab(a|[c")))
    assert reason_of("") == ""
    with pytest.raises(GrammarError, match="cannot be read: Expected"):
        grammar_source("root ::= (")


def test_a_form_is_compiled_once_and_the_oldest_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars_module, "KEPT_GRAMMARS", 2)
    compiled: list[str] = []
    real = LLMatcher

    def counting(tokenizer: object, source: str, **options: Any) -> Any:
        compiled.append(source)
        return real(tokenizer, source, **options)  # type: ignore[arg-type]  # what the module gave

    monkeypatch.setattr(grammars_module, "LLMatcher", counting)
    grammars = made()
    a, b, c = (regex_source(text) for text in "abc")
    for source in (a, a, b, a, c, a, b):
        grammars.check(source)
    assert compiled == [a, b, c, b], "b was used longest ago when c came"
