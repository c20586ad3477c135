"""Long ways through the model that prefer what was seldom tried, with names that are never used twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from tests.model.exploration import Kind, kind_of
from tests.model.functions import FRESH_OWNER
from tests.model.moves import FRESH, Step, first_world, moves
from tests.model.states import Action, Bounds, Given, Rules, World
from tests.model.symmetry import names_in, representative, simplified, with_names

SPARED: Final = ("crash", "news", "release", "cancel", "renew", "replica lags", "claim is forgotten", "read")
"""Each way does without some of these (swarm testing): what they would clear away stays, and meets more."""


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
        absent = {name for name in SPARED if self._rng.random() < 0.5}
        for _ in range(steps):
            choices: dict[Kind, list[Step]] = {}
            for step in moves(world, self._bounds, Rules()):
                kind = kind_of(step[0], world)
                name = kind[0]
                # Most claims and reaps find nothing: a few such steps will do.
                is_idle = name in ("claim", "reap") and step[1].server == world.server
                if (
                    self._allows(step[0])
                    and name not in absent
                    and not (is_idle and self._rng.random() < 0.9)
                ):
                    choices.setdefault(kind, []).append(step)
            if not choices:
                return
            (kind,) = self._rng.choices([*choices], [1 / (1 + self.tried[each]) for each in choices])
            self.tried[kind] += 1
            action, world = self._named(self._rng.choice(choices[kind]))
            yield action, world

    def along(self, worlds: list[World], kind: Kind) -> Iterator[Step]:
        """The way through these worlds, or others that differ in names only; its last step is of a kind."""
        world = first_world(self._bounds)
        for at, target in enumerate(worlds[1:], 1):
            is_last = at == len(worlds) - 1
            action, world = self._named(
                next(
                    step
                    for step in moves(world, self._bounds, Rules())
                    if (not is_last or kind_of(step[0], world) == kind)
                    and representative(step[1], has_fences=True) == target
                )
            )
            yield action, world
            world = simplified(world, has_fences=True)

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
