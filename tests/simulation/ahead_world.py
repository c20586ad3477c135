"""The preemption world one step ahead: calls come at every moment between plan, plan ahead, run and apply."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.simulation.preemption_world import CHEAP_SWAPS, PreemptionWorld

from headway.engine.isolation import execute_isolated
from headway.engine.preemption import PreemptionCosts
from headway.engine.scripted import EOS, LETTERS
from headway.engine.timeline import Happening
from headway.engine.values import PLACEHOLDER, Emission, FinishReason, StepPlan, StepResult


class AheadWorld(PreemptionWorld):
    """The engine's loop, and a device whose results are told when its next step may have run already."""

    def __init__(self, rng: random.Random, *, costs: PreemptionCosts = CHEAP_SWAPS) -> None:
        super().__init__(
            rng,
            block_count=rng.randint(3, 12),
            block_size=rng.randint(1, 4),
            slots=rng.choice((0, 4, 12)),
            copy_delay=rng.randint(0, 2),
            policy=rng.choice(("fair", "fcfs", "priority")),
            costs=costs,
            max_preemptions=rng.randint(0, 3),
            alphabet=(*LETTERS[:6], EOS),
        )
        self.moments: Iterator[bool] = self.loop()
        self.behind: StepPlan | None = None
        """The plan that was made behind the one whose result is being applied."""
        self.fate = ""

    def act(self) -> None:
        """One random operation and a recount."""
        super().act()
        live = [self.scheduler.announce(chunk.key) for chunk in (self.behind.chunks if self.behind else ())]
        assert all(PLACEHOLDER not in known.generated_token_ids for known in live if known is not None)

    def step(self) -> bool:
        """On to the next moment; with nobody left, to the end of what is under way."""
        has_moved = next(self.moments)
        while has_moved and not self.scheduler.has_work:
            has_moved = next(self.moments)
        return has_moved

    def lose(self) -> None:
        """The next step fails and is done again piece by piece, or the device is lost with its results."""
        self.fate = self.rng.choice(("failed", "lost"))

    def loop(self) -> Iterator[bool]:
        """The engine's loop, paused wherever a call may come; False: there is nothing to do."""
        while True:
            plan = self.plan()
            if plan is None:
                self.now += 0.05
            yield plan is not None
            early: StepResult | None = None
            while plan is not None:
                self.behind = self.plan_behind(plan) if plan.needs_runner else None
                yield True
                fate, self.fate = self.fate, ""
                self.seen[fate] += 1
                if fate == "lost" and early is None:
                    break
                result = early or self.run(plan, is_failing=fate == "failed")
                if fate == "failed" and early is None and self.behind is not None:
                    self.scheduler.drop(self.behind)
                    self.behind = None
                yield True
                early = None
                if self.behind is not None and self.rng.random() < 0.5:
                    # The device is a step further when this result is told.
                    early = self.run(self.behind)
                    yield True
                self.take(self.scheduler.apply(plan, result, self.now))
                yield True
                plan, self.behind = self.behind, None
            self.behind = None

    def run(self, plan: StepPlan, *, is_failing: bool = False) -> StepResult:
        """Execute a plan, or find that it fails and execute its chunks one by one."""
        if not plan.needs_runner:
            return StepResult(plan.step, (), 0.0)
        self.seen.update(
            steps=1,
            out=len(plan.swaps_out),
            back=len(plan.swaps_in),
            copied=len(plan.copies),
            ahead=any(chunk.token_ids == (PLACEHOLDER,) for chunk in plan.chunks),
        )
        if is_failing and plan.chunks:
            error = RuntimeError("the step failed")
            return execute_isolated(self.runner.execute, plan, self.scheduler.announce, error).result
        result = self.runner.execute(plan)
        self.now += result.elapsed_seconds
        return result

    def plan_behind(self, plan: StepPlan) -> StepPlan | None:
        """[S1, S4, S13, B3, B12] The plan ahead, within all limits, and with nothing known to be in vain."""
        ahead = self.scheduler.plan_ahead(plan, self.now)
        if ahead is None:
            self.seen["drained"] += 1
            return None
        keys = [chunk.key for chunk in ahead.chunks]
        assert 1 <= len(keys) == len(set(keys)) <= self.limits.max_sequences
        assert ahead.new_tokens <= self.limits.max_step_tokens
        moved = (Happening.SWAPPED, Happening.RECOMPUTED)
        assert not any(event.happening in moved for event in self.happened_in(ahead.step))
        before = {chunk.key: chunk for chunk in plan.chunks}
        for chunk in ahead.chunks:
            told = self.told[chunk.key.request_id]
            assert told.end is None
            assert not told.is_cancelled
            last = before.get(chunk.key)
            assert last is None or chunk.start == last.start + len(last.token_ids)
            assert (PLACEHOLDER in chunk.token_ids) == (last is not None and last.samples)
            index = chunk.start + len(chunk.token_ids) - len(told.spec.prompt_token_ids)
            assert index < told.spec.max_tokens
            size = self.ledger.block_size
            written = range(chunk.start // size, -(-(chunk.start + len(chunk.token_ids)) // size))
            others = {b for other in plan.chunks if other.key != chunk.key for b in other.block_table}
            assert not others & {chunk.block_table[place] for place in written}
        return ahead

    def hear(self, emission: Emission) -> None:
        """One token at most is under way of whoever ends, and none where the end could be known."""
        super().hear(emission)
        if emission.finish_reason is None or self.behind is None:
            return
        in_vain = sum(chunk.samples for chunk in self.behind.chunks if chunk.key == emission.key)
        self.seen["in vain"] += in_vain
        assert in_vain <= 1
        assert not in_vain or emission.finish_reason is not FinishReason.LENGTH
