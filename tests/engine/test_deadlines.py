"""Deadlines by prediction: refused or demoted at the door, never on a guess; and what the timeline tells."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.engine.blocks import BlockLedger
from headway.engine.errors import DeadlineError
from headway.engine.fair import FairPolicy
from headway.engine.limits import StepLimits
from headway.engine.policy import Fcfs, Policy
from headway.engine.scheduler import Scheduler
from headway.engine.timeline import Happening
from headway.engine.values import FinishReason, RequestSpec, Sampled, Sampling, StepResult


class Clocked:
    """A scheduler whose steps take 10 ms and 1 ms per token."""

    def __init__(self, policy: Policy, max_sequences: int = 4) -> None:
        limits = StepLimits(max_step_tokens=64, max_sequences=max_sequences)
        self.scheduler = Scheduler(BlockLedger(4096, 16), limits, policy, frozenset())
        self.now = 0.0

    def run(self, steps: int | None = None) -> None:
        while self.scheduler.has_work and steps != 0:
            plan = self.scheduler.plan(self.now)
            assert plan is not None
            seconds = 0.010 + 0.001 * plan.new_tokens
            sampled = tuple(Sampled(chunk.key, 7) for chunk in plan.chunks if chunk.samples)
            self.now += seconds
            self.scheduler.apply(plan, StepResult(plan.step, sampled, seconds), self.now)
            self.scheduler.check()
            steps = None if steps is None else steps - 1

    def warm_up(self) -> None:
        """Steps to learn from, and answers of 20 tokens to expect more of."""
        for place in range(24):
            self.scheduler.add(spec(f"warm{place}", prompt=10 + 7 * place, max_tokens=20, arrival=self.now))
        self.run()


def spec(name: str, prompt: int = 10, max_tokens: int = 20, arrival: float = 0.0) -> RequestSpec:
    return RequestSpec(name, 0, (1,) * prompt, Sampling(), max_tokens, arrival_seconds=arrival)


def due(clocked: Clocked, name: str, seconds: float, prompt: int = 10, max_tokens: int = 20) -> RequestSpec:
    return replace(spec(name, prompt, max_tokens, clocked.now), deadline_seconds=clocked.now + seconds)


def test_a_deadline_that_cannot_be_met_by_prediction_is_refused_with_the_numbers_and_leaves_nothing() -> None:
    clocked = Clocked(Fcfs())
    clocked.warm_up()
    with pytest.raises(DeadlineError, match=r"starts in 0\.0 s and then takes \d+\.\d s, .* in 0\.1 s"):
        clocked.scheduler.add(due(clocked, "a", 0.1, prompt=2000), now=clocked.now)
    assert not clocked.scheduler.has_work
    clocked.scheduler.check()


def test_a_deadline_that_can_be_met_is_taken_and_met() -> None:
    clocked = Clocked(Fcfs())
    clocked.warm_up()
    clocked.scheduler.add(due(clocked, "a", 1.0), now=clocked.now)
    clocked.run()
    last = clocked.scheduler.timeline.events[-1]
    assert (last.happening, last.detail) == (Happening.FINISHED, FinishReason.LENGTH.value)


def test_nothing_is_refused_before_anything_was_measured() -> None:
    clocked = Clocked(Fcfs())
    clocked.scheduler.add(due(clocked, "a", 1e-6, prompt=2000), now=0.0)
    assert clocked.scheduler.has_work


def test_without_a_clock_nothing_is_predicted() -> None:
    clocked = Clocked(Fcfs())
    clocked.warm_up()
    clocked.scheduler.add(due(clocked, "a", 0.01, prompt=2000))
    assert clocked.scheduler.has_work


def test_a_demotable_request_runs_at_best_effort_and_ends_in_full() -> None:
    clocked = Clocked(FairPolicy())
    clocked.warm_up()
    hopeless = replace(due(clocked, "a", 0.1, prompt=2000), is_demotable=True, priority=0)
    clocked.scheduler.add(hopeless, now=clocked.now)
    clocked.run()
    last = clocked.scheduler.timeline.events[-1]
    assert (last.key.request_id, last.detail, last.priority) == ("a", FinishReason.LENGTH.value, 2)


@pytest.mark.parametrize("runs", [False, True], ids=["waiting", "running"])
def test_a_demotable_request_goes_on_when_its_deadline_passes(runs: bool) -> None:
    clocked = Clocked(FairPolicy(), max_sequences=1)
    clocked.scheduler.add(spec("before", max_tokens=1 if runs else 20))
    clocked.scheduler.add(replace(due(clocked, "a", 0.05), is_demotable=True, priority=1))
    clocked.run()
    last = clocked.scheduler.timeline.events[-1]
    assert (last.key.request_id, last.detail, last.priority) == ("a", FinishReason.LENGTH.value, 2)
    assert clocked.now > 0.2


def test_an_answer_that_has_begun_goes_on_to_its_deadline() -> None:
    clocked = Clocked(Fcfs())
    clocked.warm_up()
    resumed = replace(due(clocked, "a", 0.1, prompt=2000), generated_token_ids=(7,))
    clocked.scheduler.add(resumed, now=clocked.now)
    clocked.run()
    last = clocked.scheduler.timeline.events[-1]
    assert (last.key.request_id, last.detail) == ("a", FinishReason.DEADLINE.value)


@pytest.mark.parametrize("policy", [Fcfs, FairPolicy])
def test_what_waits_ahead_counts(policy: type[Fcfs | FairPolicy]) -> None:
    clocked = Clocked(policy(), max_sequences=1)
    clocked.warm_up()
    for place in range(10):
        clocked.scheduler.add(spec(f"ahead{place}", prompt=300, arrival=clocked.now - 100))
    with pytest.raises(DeadlineError, match=r"starts in [1-9]"):
        clocked.scheduler.add(due(clocked, "a", 1.0), now=clocked.now)


def test_with_the_fair_policy_only_the_own_tenants_line_counts_in_its_class() -> None:
    clocked = Clocked(FairPolicy(), max_sequences=1)
    clocked.warm_up()
    for place in range(10):
        clocked.scheduler.add(replace(spec(f"other{place}", prompt=300), tenant="other"))
    clocked.scheduler.add(due(clocked, "a", 1.0), now=clocked.now)
    assert clocked.scheduler.load.waiting == 11  # accepted, though ten requests came before it


def test_inside_a_tenant_the_least_slack_goes_first_and_patience_ends() -> None:
    clocked = Clocked(FairPolicy(patience_seconds=10.0), max_sequences=1)
    clocked.scheduler.add(spec("running", max_tokens=3))
    clocked.run(steps=1)
    clocked.scheduler.add(spec("calm", max_tokens=1))
    clocked.scheduler.add(due(clocked, "later", 8.0, max_tokens=1))
    clocked.scheduler.add(due(clocked, "urgent", 5.0, max_tokens=1))
    clocked.scheduler.add(due(clocked, "far", 1000.0, max_tokens=1))
    clocked.run()
    started = [
        e.key.request_id for e in clocked.scheduler.timeline.events if e.happening is Happening.STARTED
    ]
    assert started == ["running", "urgent", "later", "calm", "far"]


def test_the_timeline_tells_a_life_in_order_and_each_step_with_its_prediction() -> None:
    clocked = Clocked(Fcfs())
    clocked.warm_up()
    before = len(clocked.scheduler.timeline.steps)
    clocked.scheduler.add(spec("a", prompt=100, max_tokens=3, arrival=clocked.now), now=clocked.now)
    clocked.run()
    timeline = clocked.scheduler.timeline
    life = [event for event in timeline.events if event.key.request_id == "a"]
    assert [event.happening for event in life] == [
        Happening.ARRIVED,
        Happening.ADMITTED,
        Happening.STARTED,
        Happening.PREFILLED,
        Happening.FINISHED,
    ]
    assert [event.seconds for event in life] == sorted(event.seconds for event in life)
    steps = list(timeline.steps)[before:]
    assert [list(step.tokens) for step in steps] == [[64], [36], [1], [1]]
    assert [step.samples for step in steps] == [b"\0", b"\1", b"\1", b"\1"]
    assert all(step.predicted_seconds == pytest.approx(step.real_seconds, rel=0.1) for step in steps)


def test_limits_and_class_may_change_while_requests_run() -> None:
    clocked = Clocked(FairPolicy(), max_sequences=4)
    for place in range(6):
        clocked.scheduler.add(spec(f"r{place}", max_tokens=10))
    clocked.run(steps=2)
    clocked.scheduler.set_limits(StepLimits(max_step_tokens=8, max_sequences=2))
    clocked.scheduler.set_priority("r5", 0)
    clocked.scheduler.set_priority("r0", 2)
    clocked.scheduler.set_priority("ghost", 0)
    plan = clocked.scheduler.plan(clocked.now)
    assert plan is not None
    assert len(plan.chunks) <= 2
    clocked.run()
    events = clocked.scheduler.timeline.events
    started = [event.key.request_id for event in events if event.happening is Happening.STARTED]
    assert started.index("r5") < started.index("r4")
