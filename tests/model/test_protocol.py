"""The protocol on paper: every order of events in a small world, and no promise breaks."""

from __future__ import annotations

from typing import Final

import pytest
from tests.model.exploration import explore
from tests.model.mutants import MUTANTS, Mutant
from tests.model.states import Bounds, Rules

WORLDS: Final = {
    # A world with late calls is explored in test_against_code.py, which also walks the ways through it.
    "replies that come late": Bounds(tokens=2, has_late_calls=False),
    "deadlines": Bounds(tokens=1, has_cancel=False, has_deadline=True, has_late_calls=False),
    "two jobs": Bounds(
        jobs=2, workers=1, tokens=1, room=2, has_cancel=False, has_late_calls=False, has_drain=False
    ),
    "a failover": Bounds(
        tokens=1, failovers=1, has_reader=True, has_late_calls=False, has_slow_news=False, has_drain=False
    ),
    "a failover in the middle of an answer": Bounds(
        tokens=2, failovers=1, has_late_calls=False, has_slow_news=False, has_drain=False, has_cancel=False
    ),
}
LARGE_WORLDS: Final = {
    "three tokens": Bounds(tokens=3),
    "three attempts": Bounds(tokens=2, max_attempts=3),
    "two jobs": Bounds(
        jobs=2, tokens=1, room=2, has_slow_news=False, has_late_calls=False, has_cancel=False, has_drain=False
    ),
    "three workers": Bounds(workers=3, tokens=1, has_cancel=False),
    "two failovers": Bounds(
        tokens=1, failovers=2, has_cancel=False, has_late_calls=False, has_slow_news=False, has_drain=False
    ),
    "a failover and late calls": Bounds(
        tokens=1, failovers=1, has_cancel=False, has_slow_news=False, has_drain=False
    ),
    "deadlines and cancels": Bounds(tokens=2, has_deadline=True),
}
"""The largest took 170 MB and a minute on one core."""


@pytest.mark.parametrize("name", WORLDS)
def test_whatever_happens_every_promise_is_kept(name: str) -> None:
    found = explore(WORLDS[name], Rules())
    assert found.broken is None, str(found)
    assert found.worlds > 500, "a world in which little can happen proves little"


@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", LARGE_WORLDS)
def test_whatever_happens_in_a_larger_world_every_promise_is_kept(name: str) -> None:
    found = explore(LARGE_WORLDS[name], Rules(), most_worlds=1_000_000)
    print(name, found)
    assert found.broken is None, str(found)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.rule)
def test_a_protocol_without_one_of_its_rules_breaks_a_promise(mutant: Mutant) -> None:
    found = explore(mutant.bounds, mutant.rules)
    assert found.broken is not None, f"{mutant.rule} protects nothing in this world: {found}"
    assert mutant.breaks in found.broken, str(found)


def test_each_rule_has_its_mutant() -> None:
    assert {mutant.rule for mutant in MUTANTS} == set(Rules._fields)
