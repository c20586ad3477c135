"""What is guessed of a text that repeats itself, and how sure of it experience makes us."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.engine.acceptance import Acceptance
from headway.engine.drafting import Drafting
from headway.engine.prompt_lookup import LONGEST_MATCH, MOST_PLACES, SHORTEST_MATCH, PromptLookup
from headway.engine.values import RequestKey, Sampled

KEY = RequestKey("a", 1)


def ends_alike(tokens: list[int], place: int) -> int:
    """How many tokens up to ``place`` are those up to the end."""
    matched = 0
    while matched <= place and matched < LONGEST_MATCH and tokens[place - matched] == tokens[-1 - matched]:
        matched += 1
    return matched


@given(st.lists(st.integers(0, 2), min_size=1, max_size=60), st.integers(1, 9), st.integers(1, 20))
@settings(max_examples=300, deadline=None)
def test_a_guess_is_what_followed_the_longest_of_the_newest_matches(
    tokens: list[int], length: int, first: int
) -> None:
    known: list[int] = []
    lookup = PromptLookup(known)
    for start in range(0, len(tokens), first):
        known += tokens[start : start + first]
        guess = lookup.guess(length)
        places = [
            place
            for place in range(len(known) - 2, SHORTEST_MATCH - 2, -1)
            if ends_alike(known, place) >= SHORTEST_MATCH
        ][:MOST_PLACES]
        best = max((ends_alike(known, place) for place in places), default=0)
        assert (guess is None) == (best == 0)
        if guess is None:
            continue
        assert guess.matched == best
        assert len(guess.tokens) == length
        goes_on = [
            tuple((known + known[place + 1 :] * length)[place + 1 :][:length])
            for place in places
            if ends_alike(known, place) == best
        ]
        assert guess.tokens == goes_on[0]


def test_a_long_text_is_looked_at_from_where_it_matters() -> None:
    tokens = [*range(40_000), 7, 8]
    assert PromptLookup(tokens).guess(2) is None
    tokens += [30_000, 30_001]
    assert PromptLookup(tokens).guess(2) == (2, (30_002, 30_003))


def test_rates_go_from_what_is_usual_to_what_was_seen_here() -> None:
    everyone = Acceptance()
    mine, other = Acceptance(everyone), Acceptance(everyone)
    first = mine.rate(2)
    for _ in range(40):
        mine.observe(2, is_right=True)
    assert mine.rate(2) > 0.9
    # Another request learns of it, and goes by its own experience as soon as it has some.
    assert first < other.rate(2)
    for _ in range(20):
        other.observe(2, is_right=False)
    assert other.rate(2) < 0.4 < mine.rate(2)
    # Matches of another length are another matter.
    assert mine.rate(9) == pytest.approx(Acceptance().rate(9))


def test_a_guess_is_judged_by_the_tokens_that_came_whether_it_was_computed_or_not() -> None:
    tokens = [1, 2, 3, 4, 1, 2]
    everyone = Acceptance()
    drafting = Drafting(tokens, everyone)
    guess = drafting.guess(3)
    assert guess == (2, (3, 4, 1))
    before = [everyone.rate(matched) for matched in (2, 3, 4)]
    drafting.learn(6, [Sampled(KEY, 3), Sampled(KEY, 9), Sampled(KEY, 1)])
    after = [everyone.rate(matched) for matched in (2, 3, 4)]
    assert after[0] > before[0]
    assert after[1] < before[1]
    # Behind a wrong guess nothing was learned, nor twice, nor of tokens that came elsewhere.
    assert after[2] == before[2]
    drafting.learn(6, [Sampled(KEY, 3)])
    drafting.guess(3)
    drafting.learn(7, [Sampled(KEY, 3)])
    assert [everyone.rate(matched) for matched in (2, 3, 4)] == after


def test_the_chance_of_a_guess_is_that_of_all_before_it_too() -> None:
    drafting = Drafting([1, 2, 3, 4, 1, 2], Acceptance())
    guess = drafting.guess(4)
    assert guess is not None
    rates = [Acceptance().rate(matched) for matched in (2, 3, 4, 5)]
    expected = [rates[0], rates[0] * rates[1], rates[0] * rates[1] * rates[2]]
    assert drafting.survivals(guess)[:3] == pytest.approx(expected)
