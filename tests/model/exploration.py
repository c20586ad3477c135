"""All worlds that can be reached from the first one, breadth first: a counterexample is a shortest one."""

from __future__ import annotations

from array import array
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import pairwise

from tests.model.functions import LOST
from tests.model.moves import first_world, is_at_rest, is_misfortune, moves
from tests.model.promises import broken_by, broken_in
from tests.model.states import NOBODY, Action, Bounds, Rules, World
from tests.model.symmetry import representative

STUCK = "from every world all that was accepted can still come to its end, without any further misfortune"


Kind = tuple[str, str, object]
"""Of a step: the call or event, what became of it, and what was answered."""


def kind_of(action: Action, before: World) -> Kind:
    """What sort of step it is. ``behind``: the owner is refused, since the server has forgotten something."""
    outcome, call = action.outcome, action.call
    if call is None:
        return action.name, "", None
    if outcome == LOST and call.token == before.server.jobs[call.job].token != NOBODY:
        return call.function, action.fate, "behind"
    if call.function == "reap":
        return call.function, action.fate, tuple(map(bool, outcome))
    return (
        call.function,
        action.fate,
        outcome[0] if outcome and isinstance(outcome[0], str) else bool(outcome),
    )


@dataclass(slots=True)
class Exploration:
    """What was found."""

    worlds: int = 0
    steps: int = 0
    broken: str | None = None
    path: list[Action] = field(default_factory=list[Action])
    """The steps to the broken promise."""
    kinds: Counter[Kind] = field(default_factory=Counter[Kind])
    ways: dict[Kind, list[World]] = field(default_factory=dict[Kind, list[World]])
    """A shortest way to a step of each kind, worlds before and after it included."""

    def __str__(self) -> str:
        lines = [
            f"{self.worlds} worlds, {self.steps} steps",
            *([f"BROKEN: {self.broken}"] if self.broken else []),
        ]
        return "\n".join([*lines, *(f"  {at}. {action}" for at, action in enumerate(self.path, 1))])


def explore(bounds: Bounds, rules: Rules, most_worlds: int = 5_000_000) -> Exploration:
    """Look at every world; stops at the first broken promise. Raises RuntimeError when there are too many."""
    return _Search(bounds, rules, most_worlds).run()


class _Search:
    def __init__(self, bounds: Bounds, rules: Rules, most_worlds: int) -> None:
        self._bounds = bounds
        self._rules = rules
        self._most = most_worlds
        self._has_fences = rules.has_fences
        first = representative(first_world(bounds), has_fences=self._has_fences)
        self._numbers = {first: 0}
        self._todo = deque([first])
        self._parents = array("l", [-1])
        self._found = Exploration()
        # Edges of steps that are no misfortune, for the question whether a good end can be reached.
        self._from = array("l")
        self._to = array("l")
        self._at_rest = [0]
        self._firsts: dict[Kind, tuple[int, World]] = {}

    def run(self) -> Exploration:
        while self._todo:
            world = self._todo.popleft()
            number = self._numbers[world]
            for action, step in moves(world, self._bounds, self._rules):
                self._found.steps += 1
                kind = kind_of(action, world)
                self._found.kinds[kind] += 1
                after = world if step == world else representative(step, has_fences=self._has_fences)
                if kind not in self._firsts:
                    self._firsts[kind] = (number, after)
                if step == world:
                    continue
                broken = broken_by(world, action, step)
                known = self._numbers.get(after)
                if known is None:
                    known = self._add(after, number)
                    broken = broken or broken_in(after, self._bounds, self._rules)
                if broken:
                    return self._stop(broken, number, action)
                if not is_misfortune(action):
                    self._from.append(number)
                    self._to.append(known)
        self._found.worlds = len(self._numbers)
        self._look_for_stuck()
        by_number = list(self._numbers)
        for kind, (number, after) in self._firsts.items():
            self._found.ways[kind] = [*(by_number[at] for at in self._chain_to(number)), after]
        return self._found

    def _add(self, world: World, parent: int) -> int:
        number = self._numbers[world] = len(self._numbers)
        if number >= self._most:
            raise RuntimeError(f"more than {self._most} worlds: narrow the bounds")
        self._parents.append(parent)
        self._todo.append(world)
        if is_at_rest(world, self._bounds):
            self._at_rest.append(number)
        return number

    def _look_for_stuck(self) -> None:
        before: list[list[int]] = [[] for _ in range(len(self._numbers))]
        for source, target in zip(self._from, self._to, strict=True):
            before[target].append(source)
        good = set(self._at_rest)
        todo = list(self._at_rest)
        while todo:
            for source in before[todo.pop()]:
                if source not in good:
                    good.add(source)
                    todo.append(source)
        stuck = next((number for number in range(len(self._numbers)) if number not in good), None)
        if stuck is not None:
            self._stop(STUCK, stuck, None)

    def _stop(self, broken: str, number: int, last: Action | None) -> Exploration:
        self._found.worlds = len(self._numbers)
        self._found.broken = broken
        self._found.path = [*self._path_to(number), *([last] if last else [])]
        return self._found

    def _chain_to(self, number: int) -> list[int]:
        """The numbers of the worlds on the way to one."""
        chain = [number]
        while self._parents[chain[-1]] >= 0:
            chain.append(self._parents[chain[-1]])
        return chain[::-1]

    def _path_to(self, number: int) -> list[Action]:
        """The steps to a world, found again by walking the tree of parents."""
        chain = self._chain_to(number)
        worlds = {number: world for world, number in self._numbers.items() if number in set(chain)}
        path = []
        for here, there in pairwise(chain):
            path.append(
                next(
                    action
                    for action, step in moves(worlds[here], self._bounds, self._rules)
                    if representative(step, has_fences=self._has_fences) == worlds[there]
                )
            )
        return path
