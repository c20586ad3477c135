"""The fair policy's order, taken alone: layers, locality within the quantum, and starts counted at once."""

from __future__ import annotations

from headway.engine.block_table import BlockTable
from headway.engine.fair import FairPolicy
from headway.engine.request import Request
from headway.engine.values import RequestSpec, Sampling


def waiting(
    policy: FairPolicy, serial: int, tenant: str, *, priority: int = 1, arrival: float = 0.0
) -> Request:
    spec = RequestSpec(
        f"{tenant}{serial}",
        0,
        (1,) * 10,
        Sampling(),
        5,
        tenant=tenant,
        priority=priority,
        arrival_seconds=arrival,
    )
    request = Request(spec, serial)
    policy.join(request)
    policy.enqueue(request)
    return request


def started(policy: FairPolicy, count: int, *, cost: float = 10.0, now: float = 0.0) -> str:
    """The tenants of the next ``count`` starts, each charged nothing yet."""
    order = ""
    for request in policy.candidates(now, lambda _: 0):
        if len(order) == count:
            break
        request.table = BlockTable(0)
        policy.start(request, now, cost)
        order += request.spec.tenant
    return order


def test_what_was_started_counts_at_once_so_tenants_alternate_within_one_step() -> None:
    policy = FairPolicy(quantum_tokens=0.0)
    for serial in range(8):
        waiting(policy, serial, "f" if serial < 4 else "g")
    assert started(policy, 8) == "fgfgfgfg"


def test_weights_show_within_one_step() -> None:
    policy = FairPolicy(quantum_tokens=0.0, weights={"g": 3.0})
    for serial in range(16):
        waiting(policy, serial, "f" if serial < 8 else "g")
    assert started(policy, 8).count("g") == 6


def test_a_debt_that_is_not_served_is_forgiven() -> None:
    policy = FairPolicy(quantum_tokens=0.0)
    gone = waiting(policy, 1, "f")
    waiting(policy, 2, "f")
    waiting(policy, 3, "g")
    assert started(policy, 1, cost=1000.0) == "f"
    policy.leave(gone)
    assert policy.times(1)["f"].position == 0.0
    assert started(policy, 1) == "f"


def test_within_the_quantum_the_longer_cached_prefix_goes_first_and_beyond_it_does_not() -> None:
    policy = FairPolicy(quantum_tokens=50.0)
    cold, hot = waiting(policy, 1, "cold"), waiting(policy, 2, "hot")
    waiting(policy, 3, "hot")

    def cached(request: Request) -> int:
        return 8 if request.spec.tenant == "hot" else 0

    assert next(iter(policy.candidates(0.0, cached))) is hot
    policy.charge(hot, 51.0)
    assert next(iter(policy.candidates(0.0, cached))) is cold


def test_candidates_tell_each_waiting_request_once_and_skip_nobody() -> None:
    policy = FairPolicy()
    requests = {waiting(policy, serial, "abc"[serial % 3], priority=serial % 2) for serial in range(12)}
    seen = list(policy.candidates(1e9, lambda _: 0))
    assert set(seen) == requests
    assert len(seen) == 12
    assert policy.waiting == 12


def test_an_aged_request_goes_ahead_of_the_bands_once_and_then_the_bands_have_a_turn() -> None:
    policy = FairPolicy(age_limit_seconds=10.0)
    for serial in range(3):
        waiting(policy, serial, "f", priority=0, arrival=95.0)
        waiting(policy, 10 + serial, "n", priority=2, arrival=50.0)
    assert started(policy, 1, now=100.0) == "n"
    assert started(policy, 1, now=120.0) == "f"
    assert started(policy, 1, now=120.0) == "n"
    assert started(policy, 2, now=121.0) == "ff"


def test_who_gave_way_goes_first_in_its_tenant_even_if_others_are_more_urgent() -> None:
    policy = FairPolicy()
    victim = waiting(policy, 1, "f", arrival=50.0)
    urgent = waiting(policy, 2, "f", arrival=0.0)
    assert next(iter(policy.candidates(0.0, lambda _: 0))) is urgent
    policy.withdraw(victim)
    victim.preemptions = 1
    policy.enqueue(victim)
    assert next(iter(policy.candidates(0.0, lambda _: 0))) is victim
