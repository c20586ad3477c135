"""Look-ahead with one wrong line each, and the test that must notice."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

WALK = "tests/simulation/test_look_ahead_walk.py::test_long_walks_end_with_the_right_answers"
AHEAD = "tests/engine/test_look_ahead.py"
ENDS = "tests/engine/test_look_ahead_ends.py"
FAILURES = "tests/engine/test_look_ahead_failures.py"


def _steps(name: str, right: str, wrong: str, test: str = ENDS) -> Mutant:
    return Mutant(name, "engine/steps.py", right, wrong, test)


def _view(name: str, right: str, wrong: str, test: str = AHEAD) -> Mutant:
    return Mutant(name, "engine/look_ahead.py", right, wrong, test)


LOOK_AHEAD_MUTANTS = (
    Mutant(
        "a token of a former epoch counts",
        "engine/roster.py",
        "return request if request is not None and request.key.epoch == key.epoch else None",
        "return request",
        ENDS,
    ),
    _steps(
        "a step ahead has the fence of the step before",
        "            self._memory.ledger.extend(request.table, end, self.planned),",
        "            self._memory.ledger.extend(request.table, end, self.planned - 1),",
        WALK,
    ),
    Mutant(
        "a plan that is given up fences what it lengthened",
        "engine/memory.py",
        "self.ledger.extend(_table(request), request.computed_tokens + 1)",
        "self.ledger.extend(_table(request), request.computed_tokens + 1, self.ledger._finished_step + 2)",
        ENDS,
    ),
    _steps(
        "a plan ahead tells the runner again what the one before it tells",
        "released = self._roster.releases_after(flight.releases)",
        "released = self._roster.releases_after(0)",
        AHEAD,
    ),
    Mutant(
        "what is released again while a plan is under way is never told",
        "engine/roster.py",
        "if self.released.get(key, releases + 1) <= releases:",
        "if key in self.released:",
        ENDS,
    ),
    _steps(
        "a deadline that the step under way will pass is not seen",
        "if deadline is not None and deadline <= starts_at:",
        "if deadline is not None and deadline <= now:",
        AHEAD,
    ),
    Mutant(
        "somebody gives way before the result is known",
        "engine/planner.py",
        "        if self._is_ahead:\n",
        "        if False:\n",
        WALK,
    ),
    _view("an answer at its length goes on", "ending.add(request)\n", "pass\n"),
    _view(
        "a placeholder stays",
        "                del request.tokens[-1]\n",
        "                pass\n",
        ENDS,
    ),
    _view(
        "what is under way stays computed",
        "            request.computed_tokens = chunk.start\n",
        "            pass\n",
    ),
    _view("the runner is told twice of a newcomer", "        request.is_announced = True\n", ""),
    _view(
        "a newcomer counts as told although its plan is thrown away",
        "request.is_announced, request.due_seconds = was_announced, due_seconds",
        "request.due_seconds = due_seconds",
        WALK,
    ),
    Mutant(
        "a duplicate does not wait for the step under way",
        "engine/prefix_cache.py",
        "self._under_way = self._expected if but_last else set()",
        "self._under_way = set()",
        AHEAD,
    ),
    Mutant(
        "a plan behind a failed step is executed",
        "engine/engine.py",
        "                self._scheduler.drop(ahead)\n",
        "                self._under_way = self._start(ahead)\n",
        FAILURES,
    ),
    Mutant(
        "a placeholder is executed alone as it is",
        "engine/isolation.py",
        "named = chunk._replace(token_ids=tokens, draft_tokens=0)",
        "named = chunk if tokens else chunk",
        FAILURES,
    ),
    Mutant(
        "a failure of nobody alive breaks the engine",
        "engine/isolation.py",
        "blamed == 0 and (tried or not plan.chunks):",
        "blamed == 0:",
        FAILURES,
    ),
    Mutant(
        "the runner fills in a token of another position",
        "engine/last_step.py",
        "token_id = tokens.get((chunk.key, chunk.start))",
        "token_id = tokens.get((chunk.key, chunk.start)) or next(iter(tokens.values()), 0)",
        FAILURES,
    ),
)
