"""The scheduler, its policy and its callers with one wrong line each, and the test that must notice."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

WALK = "tests/simulation/test_preemption_walk.py::test_long_walks_end_with_the_right_answers"
FAIRNESS = "tests/engine/test_fairness.py"
SHARES = "tests/simulation/test_fair_shares.py"
BUDGET = "tests/engine/test_budget.py"
SCHEDULER = "tests/engine/test_scheduler.py"
ENDS = "tests/engine/test_scheduler_ends.py"
CASES = "tests/engine/test_field_cases.py"
CASES_OF_MEMORY = "tests/engine/test_field_cases_memory.py"
DEADLINES = "tests/engine/test_deadlines.py"


def _admission(name: str, right: str, wrong: str, test: str = CASES) -> Mutant:
    return Mutant(name, "engine/admission.py", right, wrong, test)


def _budget(name: str, right: str, wrong: str, test: str = BUDGET) -> Mutant:
    return Mutant(name, "engine/budget.py", right, wrong, test)


def _plain(name: str, right: str, wrong: str) -> Mutant:
    return Mutant(name, "engine/plain_step.py", right, wrong, "tests/simulation/test_plain_steps.py")


def _roster(name: str, right: str, wrong: str, test: str = ENDS) -> Mutant:
    return Mutant(name, "engine/roster.py", right, wrong, test)


SCHEDULING_MUTANTS = (
    _plain("a plain step passes over who waits", "if policy.waiting or", "if"),
    _plain("a plain step holds who is on hold", "request.is_held or ", ""),
    _plain("a plain step looks for no room", "computed >= ", "computed > "),
    _plain("a plain step takes a claimed block", " or memory.is_claimed", ""),
    _plain("a plain step computes on what is still copied", "memory.is_swapping or ", ""),
    _plain("a plain step holds more than have places", "len(running) > limits.max_sequences or ", ""),
    Mutant(
        "a tenant that returns is not lifted",
        "engine/fairness.py",
        "            account.time = max(account.time, self.floor())\n",
        "            self.floor()\n",
        FAIRNESS,
    ),
    Mutant(
        "the last to leave does not set the floor",
        "engine/fairness.py",
        "            self._floor = max(self._floor, account.time)\n",
        "            pass\n",
        FAIRNESS,
    ),
    Mutant(
        "a step is not charged",
        "engine/fairness.py",
        "        else:\n            account.time += cost / account.weight",
        "        else:\n            pass",
        FAIRNESS,
    ),
    Mutant(
        "a step is charged without its weight",
        "engine/fairness.py",
        "        else:\n            account.time += cost / account.weight",
        "        else:\n            account.time += cost",
        FAIRNESS,
    ),
    Mutant(
        "a departed tenant's last step is not charged",
        "engine/fairness.py",
        "            account.time += cost / account.weight\n            self.leave",
        "            self.leave",
        FAIRNESS,
    ),
    Mutant(
        "work that a preemption undid is charged again",
        "engine/flights.py",
        "paid = start if start > request.charged_tokens else request.charged_tokens",
        "paid = start",
        "tests/simulation/test_fair_shares.py::test_work_that_a_preemption_undid_is_charged_once",
    ),
    Mutant(
        "what was cancelled meanwhile is not charged",
        "engine/flights.py",
        "                charge(request, price(paid, end - paid))\n",
        "                pass\n",
        "tests/simulation/test_fair_shares.py::test_a_cancelled_request_pays_for_the_step_that_ran_meanwhile",
    ),
    _budget("decodes cost no tokens", "        self.tokens -= len(decodes)\n", "", WALK),
    _budget("a step may take any time", "if seconds <= left or tokens <= least:", "if True:"),
    _budget("a decode may be left out for ever", "request.skipped_steps += 1", "request.skipped_steps += 0"),
    _budget(
        "a late token ends the step at once",
        "slack = max(min(dues) - self._now, self._limits.min_step_seconds)",
        "slack = min(dues) - self._now",
    ),
    _admission(
        "one sequence too many",
        "len(self.active) + len(self.started) < self.limits.max_sequences",
        "len(self.active) + len(self.started) <= self.limits.max_sequences",
        "tests/engine/test_turns.py",
    ),
    _admission(
        "who does not fit is passed for ever",
        "            earlier.passes += 1\n",
        "            pass\n",
        SCHEDULER,
    ),
    _admission(
        "nobody starts behind a barrier though nothing runs",
        "something_runs = bool(self.active or self.started)",
        "something_runs = True",
        SCHEDULER,
    ),
    _admission(
        "a better class displaces nobody",
        "r.spec.priority > priority and",
        "r.spec.priority > priority + 9 and",
    ),
    _admission(
        "blocks that the beneficiary shares count as room",
        "kept=set(self.memory.found_blocks(request)),",
        "kept=set(),",
        "tests/engine/test_displacing.py",
    ),
    _admission(
        "who is on hold keeps its blocks from a better class",
        "self.active if sequences else self.running.values()",
        "self.active",
        "tests/engine/test_displacing.py",
    ),
    _admission("who was starved is displaced again", " and not r.is_pinned]", "]"),
    _admission("a duplicate is not waited for", "if self.memory.is_expected(request):", "if False:"),
    Mutant(
        "who starts beyond the places is in the step",
        "engine/planner.py",
        "budget)[: self.limits.max_sequences - len(active)]",
        "budget)",
        "tests/engine/test_turns.py",
    ),
    _admission(
        "who has its share takes turns too",
        "return 1 + peers.count(spec.tenant) <=",
        "return 0 <=",
        "tests/engine/test_turns.py",
    ),
    _admission(
        "a better class gives turns to a lower one",
        "other.priority < spec.priority for",
        "other.priority < 0 for",
        "tests/engine/test_turns.py",
    ),
    Mutant(
        "a step that preempts starts others",
        "engine/planner.py",
        "if self._has_preempted or",
        "if",
        "tests/engine/test_planner.py",
    ),
    Mutant(
        "the first of those who grow gives way",
        "engine/planner.py",
        "if r is not growing[0]]",
        "if True]",
        "tests/engine/test_planner.py",
    ),
    Mutant(
        "a chunk counts wherever it starts",
        "engine/steps.py",
        "if request.table is None or request.computed_tokens != start:",
        "if request.table is None:",
        WALK,
    ),
    Mutant(
        "an end is told with every step",
        "engine/steps.py",
        "        self._roster.farewells.clear()\n",
        "",
        ENDS,
    ),
    _roster(
        "a word about an older epoch counts",
        " and request.key.epoch == key.epoch else None",
        " else None",
        CASES,
    ),
    _roster("a deadline is not seen", "first[0][0] <= now:", "first[0][0] <= now - 1e9:"),
    _roster(
        "who is held still waits in the line",
        "            if request.table is None:\n                self._policy.withdraw(request)\n"
        "            self._policy.leave(request)\n",
        "            self._policy.leave(request)\n",
    ),
    _roster("who ends keeps its blocks", "        self._memory.release(request)\n", "", CASES_OF_MEMORY),
    Mutant(
        "nobody ages",
        "engine/fair.py",
        "if now - since >= self._age_limit_seconds else None",
        "if False else None",
        SHARES,
    ),
    Mutant(
        "the aged take every start",
        "engine/fair.py",
        "        if self._started_aged:\n            return None\n",
        "",
        SHARES,
    ),
    Mutant(
        "a longer prefix goes first for ever",
        "engine/fair.py",
        "            first[1].displaced += 1\n",
        "            pass\n",
        CASES,
    ),
    Mutant(
        "what was started counts only when it is computed",
        "engine/fair.py",
        "        queue.account.debt += cost\n",
        "",
        "tests/engine/test_fair.py",
    ),
    Mutant(
        "a deadline out of reach is taken",
        "engine/deadlines.py",
        "    if not spec.is_demotable:\n        raise DeadlineError(",
        "    if False:\n        raise DeadlineError(",
        DEADLINES,
    ),
    Mutant(
        "what is demoted keeps its class",
        "engine/deadlines.py",
        "priority=max(spec.priority, BEST_EFFORT), deadline_seconds=None)",
        "deadline_seconds=None)",
        DEADLINES,
    ),
    Mutant(
        "what is recomputed counts as a hit",
        "engine/memory.py",
        "            self.regained_tokens += request.computed_tokens\n",
        "            self.hit_tokens += request.computed_tokens\n",
        CASES_OF_MEMORY,
    ),
    Mutant(
        "logprobs are lost",
        "engine/transcript.py",
        "if token_id is None:",
        "if token_id is None or token_id % 2:",
        "tests/engine/test_field_cases_engine.py",
    ),
    Mutant(
        "a resumed answer begins anew",
        "services/translate.py",
        "generated_token_ids=answer.token_ids(choice),",
        "generated_token_ids=(),",
        "tests/services/worker/test_translate.py",
    ),
    Mutant(
        "a job runs ahead of the queue without a bound",
        "services/flow_control.py",
        "        flow.is_held = True\n        return tuple(sorted(flow.requests))",
        "        flow.is_held = True\n        return ()",
        "tests/services/worker/test_flow_control.py",
    ),
    Mutant(
        "usage counts only what was resumed",
        "services/answer.py",
        "completion_tokens=self._sealed_tokens)",
        "completion_tokens=self.resumed_tokens)",
        "tests/services/worker/test_answer.py",
    ),
    Mutant(
        "one choice out of reach leaves the others running",
        "services/engine_thread.py",
        "                for earlier in specs[:place]:\n",
        "                for earlier in ():\n",
        "tests/services/worker/test_engine_thread.py",
    ),
)
