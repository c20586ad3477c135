"""Counts for penalties: right for any text, wherever its tokens were first met."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.engine.token_history import TokenHistory

TOKENS = st.lists(st.integers(0, 500), max_size=300)


@given(prompt=TOKENS, answer=TOKENS, later=TOKENS)
def test_every_token_is_there_once_with_its_occurrences_in_the_answer(
    prompt: list[int], answer: list[int], later: list[int]
) -> None:
    history = TokenHistory(prompt, answer)
    history.append(later)
    counts = Counter(answer + later)
    assert history.known_tokens == len(prompt + answer + later)
    assert history.tokens.tolist() == list(dict.fromkeys(prompt + answer + later))
    assert history.answer_counts.tolist() == [counts[token] for token in history.tokens.tolist()]


@pytest.mark.parametrize("known", [63, 64, 65, 127, 128])
def test_a_new_token_of_the_answer_finds_room_however_many_there_are(known: int) -> None:
    history = TokenHistory(range(known), ())
    history.append((known, known))
    assert history.answer_counts.tolist() == [0.0] * known + [2.0]
