"""Long ways through the model that prefer what was seldom tried, with names that are never used twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random

from tests.model.exploration import Kind, kind_of
from tests.model.functions import FRESH_OWNER
from tests.model.moves import FRESH, Step, first_world, moves
from tests.model.states import Action, Bounds, Given, Rules
from tests.model.symmetry import names_in, with_names


class Walker:
    """Draws ways; ``tried`` counts the kinds of their steps."""

    def __init__(
        self, bounds: Bounds, rng: Random, allows: Callable[[Action], bool] = lambda _: True
    ) -> None:
        self.tried: Counter[Kind] = Counter()
        self._bounds = bounds
        self._rng = rng
        self._allows = allows
        self._names = 1000

    def way(self, steps: int) -> Iterator[Step]:
        """One way from the first world on."""
        world = first_world(self._bounds)
        for _ in range(steps):
            choices = [step for step in moves(world, self._bounds, Rules()) if self._allows(step[0])]
            if not choices:
                return
            weights = [1 / (1 + self.tried[kind_of(action)]) for action, _ in choices]
            (step,) = self._rng.choices(choices, weights)
            self.tried[kind_of(step[0])] += 1
            action, world = self._named(step)
            yield action, world

    def _named(self, step: Step) -> Step:
        action, world = step
        first = self._names
        self._names += 10
        outcome = tuple(
            part._replace(token=_new(part.token, first), owner=_new(part.owner, first))
            if isinstance(part, Given)
            else part
            for part in action.outcome
        )
        call = action.call and action.call._replace(token=_new(action.call.token, first))
        names = {name: _new(name, first) for name in names_in(world)}
        return action._replace(call=call, outcome=outcome), with_names(world, names)


def _new(name: int, first: int) -> int:
    """Old names stay; the fresh ones of a step become its own."""
    if name == FRESH:
        return first
    return first + 1 + name - FRESH_OWNER if FRESH_OWNER <= name < FRESH_OWNER + 9 else name
