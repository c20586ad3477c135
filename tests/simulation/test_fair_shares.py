"""The fairness proofs, on a virtual clock with the real scheduler: shares, lifts, ageing, and who pays.

W_k is counted here, from the plans, in tokens: not taken from the scheduler's own ledger.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from headway.engine.blocks import BlockLedger
from headway.engine.cost_model import CostModel
from headway.engine.fair import FairPolicy
from headway.engine.limits import StepLimits
from headway.engine.memory import Memory
from headway.engine.policy import Fcfs, Policy
from headway.engine.scheduler import Scheduler
from headway.engine.values import FinishReason, RequestSpec, Sampled, Sampling, StepPlan, StepResult

QUANTUM = 64.0


@dataclass
class Service:
    """A scheduler, a clock that its steps move, and what each tenant got."""

    policy: Policy
    limits: StepLimits = field(default_factory=lambda: StepLimits(max_step_tokens=64, max_sequences=8))
    now: float = 0.0

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(BlockLedger(4096, 16), self.limits, self.policy, frozenset())
        self.tenant: dict[str, str] = {}
        self.got: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        self.started: dict[str, float] = {}
        self.arrived: dict[str, float] = {}
        self.most_in_flight = 0
        self._serial = itertools.count()

    def add(self, tenant: str, prompt: int, max_tokens: int, priority: int = 1) -> str:
        name = f"{tenant}-{next(self._serial)}"
        self.tenant[name] = tenant
        self.arrived[name] = self.now
        self.waiting[tenant] += 1
        self.scheduler.add(
            RequestSpec(
                request_id=name,
                epoch=0,
                prompt_token_ids=tuple(range(prompt)),
                sampling=Sampling(temperature=0),
                max_tokens=max_tokens,
                tenant=tenant,
                priority=priority,
                arrival_seconds=self.now,
            )
        )
        return name

    def step(self) -> StepPlan | None:
        plan = self.scheduler.plan(self.now)
        if plan is None:
            return None
        seconds = 0.010 + 0.001 * plan.new_tokens
        self.now += seconds
        sampled = tuple(Sampled(chunk.key, 7) for chunk in plan.chunks if chunk.samples)
        self.scheduler.apply(plan, StepResult(plan.step, sampled, seconds), self.now)
        for chunk in plan.chunks:
            name = chunk.key.request_id
            self.got[self.tenant[name]] += len(chunk.token_ids)
            if name not in self.started:
                self.started[name] = self.now
                self.waiting[self.tenant[name]] -= 1
        held = sum(chunk.start + len(chunk.token_ids) for chunk in plan.chunks)
        self.most_in_flight = max(self.most_in_flight, held)
        return plan


def jain(shares: list[float]) -> float:
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


@pytest.mark.parametrize("seed", range(3))
def test_weights_one_to_three_are_kept_within_twice_u_and_q_at_every_instant(seed: int) -> None:
    rng = random.Random(seed)
    weights = {"f": 1.0, "g": 3.0}
    service = Service(FairPolicy(weights=weights, quantum_tokens=QUANTUM))
    longest = 0
    for _ in range(1500):
        for tenant in weights:
            while service.waiting[tenant] < 4:
                prompt, answer = rng.randrange(1, 80), rng.randrange(1, 30)
                longest = max(longest, prompt + answer)
                service.add(tenant, prompt, answer)
        service.step()
        gap = abs(service.got["f"] / 1.0 - service.got["g"] / 3.0)
        # U: the longest request, or everything in a running batch (VTC, theorem 4.4).
        bound = 2 * (max(longest, service.most_in_flight) + QUANTUM)
        assert gap <= bound
    assert service.got["g"] / service.got["f"] == pytest.approx(3.0, rel=0.05)


def contended_share(policy: Policy) -> float:
    """Jain's index of service over one heavy tenant (50 wait, always) and 9 light ones, all backlogged."""
    rng = random.Random(1)
    service = Service(policy)
    tenants = {"heavy": 50, **{f"light{place}": 2 for place in range(9)}}
    for _ in range(4000):
        for tenant, backlog in tenants.items():
            while service.waiting[tenant] < backlog:
                service.add(tenant, rng.randrange(10, 60), rng.randrange(5, 20))
        service.step()
    return jain([float(service.got[tenant]) for tenant in tenants])


def test_a_heavy_tenant_and_nine_light_ones_share_by_jain_above_0_99() -> None:
    assert contended_share(FairPolicy(quantum_tokens=QUANTUM)) >= 0.99
    assert contended_share(Fcfs()) < 0.7


def test_who_was_idle_gets_no_burst_when_it_comes_back() -> None:
    service = Service(FairPolicy(quantum_tokens=QUANTUM))

    def keep(*tenants: str) -> None:
        for tenant in tenants:
            while service.waiting[tenant] < 4:
                service.add(tenant, 30, 10)

    for _ in range(500):
        keep("a", "b")
        service.step()
    before = Counter(service.got)
    for _ in range(200):
        keep("a", "b", "late")
        service.step()
    gained = {tenant: service.got[tenant] - before[tenant] for tenant in ("a", "b", "late")}
    assert max(gained.values()) - min(gained.values()) <= 2 * (service.most_in_flight + QUANTUM)


def test_a_newcomer_gets_no_burst_before_tenants_that_only_run() -> None:
    service = Service(FairPolicy(quantum_tokens=0.0), StepLimits(max_step_tokens=64, max_sequences=2))
    for _ in range(2):
        service.add("running", 30, 200)
    for _ in range(50):
        service.step()
    times = service.policy.times(1) if isinstance(service.policy, FairPolicy) else None
    assert times is not None
    service.add("new", 30, 10)
    assert times["new"].time == times["running"].time > 60


def test_a_weight_that_changes_while_requests_run_changes_the_shares_from_then_on() -> None:
    policy = FairPolicy(quantum_tokens=QUANTUM)
    service = Service(policy)

    def run(steps: int) -> float:
        before = Counter(service.got)
        for _ in range(steps):
            for tenant in ("a", "b"):
                while service.waiting[tenant] < 4:
                    service.add(tenant, 30, 10)
            service.step()
        return (service.got["a"] - before["a"]) / (service.got["b"] - before["b"])

    assert run(600) == pytest.approx(1.0, rel=0.1)
    service.scheduler.set_weight("a", 4.0)
    assert run(1200) == pytest.approx(4.0, rel=0.15)
    with pytest.raises(ValueError, match="above 0"):
        service.scheduler.set_weight("a", 0.0)


def starts_after(policy: Policy, age_limit: float) -> tuple[float, float]:
    """How long a batch job waits under an endless interactive stream, and the longest service time there."""
    service = Service(policy, StepLimits(max_step_tokens=64, max_sequences=2))
    longest_service = 2 * 40 * 0.074
    name = ""
    while service.now < age_limit + 10 * longest_service:
        while service.waiting["chat"] < 6:
            service.add("chat", 20, 20, priority=0)
        if not name and service.now > 1.0:
            name = service.add("night", 20, 20, priority=2)
        service.step()
        if name and name in service.started:
            return service.started[name] - service.arrived[name], longest_service
    return float("inf"), longest_service


def test_a_batch_job_under_an_endless_interactive_stream_starts_within_its_age_limit() -> None:
    waited, service_time = starts_after(FairPolicy(age_limit_seconds=5.0), 5.0)
    assert 5.0 <= waited <= 5.0 + service_time
    assert starts_after(FairPolicy(age_limit_seconds=1e9), 5.0)[0] == float("inf")


@pytest.mark.parametrize("sequences", [1, 2])
def test_an_aged_job_is_not_displaced_and_ageing_never_takes_the_better_bands_place(sequences: int) -> None:
    limits = StepLimits(max_step_tokens=64, max_sequences=sequences)
    service = Service(FairPolicy(age_limit_seconds=0.5), limits)
    interactive: list[str] = []
    for _ in range(2000):
        while service.waiting["chat"] < 3:
            interactive.append(service.add("chat", 20, 10, priority=0))
        for place in range(20):
            while service.waiting[f"night{place}"] < 1:
                service.add(f"night{place}", 20, 10, priority=2)
        service.step()
    starts = sum(name in service.started for name in interactive)
    assert 0.4 * len(service.started) <= starts
    assert all(f"night{place}" in {service.tenant[name] for name in service.started} for place in range(20))


def test_work_that_a_preemption_undid_is_charged_once() -> None:
    policy = FairPolicy()
    ledger, cost = BlockLedger(8, 4), CostModel()
    memory = Memory(ledger, cost, is_overcommitted=True)
    scheduler = Scheduler(ledger, StepLimits(), policy, frozenset(), cost=cost, memory=memory)
    for place in range(3):
        for _ in range(8):
            memory.quantiles.observe(f"t{place}", 1)  # so all of them start, and run out of blocks
        scheduler.add(RequestSpec(f"r{place}", 0, (1,) * 4, Sampling(temperature=0), 12, tenant=f"t{place}"))
    computed: Counter[str] = Counter()
    charged: dict[str, float] = {}
    while scheduler.has_work:
        plan = scheduler.plan(0.0)
        assert plan is not None
        sampled = tuple(Sampled(chunk.key, 7) for chunk in plan.chunks if chunk.samples)
        for chunk in plan.chunks:
            computed[chunk.key.request_id] += len(chunk.token_ids)
        times = policy.times(1)
        scheduler.apply(plan, StepResult(plan.step, sampled, 0.0), 0.0)
        scheduler.check()
        charged.update({f"r{place}": times[f"t{place}"].time for place in range(3) if f"t{place}" in times})
    assert sum(computed.values()) > 3 * 15
    assert all(time <= 15.0 for time in charged.values())


def test_a_cancelled_request_pays_for_the_step_that_ran_meanwhile() -> None:
    policy = FairPolicy()
    scheduler = Scheduler(BlockLedger(64, 4), StepLimits(), policy, frozenset())
    scheduler.add(RequestSpec("stays", 0, (1,) * 4, Sampling(), 50, tenant="other"))
    scheduler.add(RequestSpec("goes", 0, (1,) * 40, Sampling(), 5, tenant="quitter"))
    plan = scheduler.plan(0.0)
    assert plan is not None
    scheduler.cancel("goes", FinishReason.CANCELLED)
    sampled = tuple(Sampled(chunk.key, 7) for chunk in plan.chunks if chunk.samples)
    scheduler.apply(plan, StepResult(plan.step, sampled, 0.0), 0.0)
    scheduler.add(RequestSpec("again", 0, (1,) * 4, Sampling(), 5, tenant="quitter"))
    assert policy.times(1)["quitter"].time >= 40.0
