"""Arrivals given to tenants: what the simulated clients ask for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from headway.services.arrivals import Arrival, DrawLengths, Lengths
from headway.services.simulated_tenants import PRIORITIES, SimulatedTenant


@dataclass(frozen=True, slots=True)
class Demand:
    """One request before it meets a scheduler."""

    seconds: float
    """When it comes; one that keeps a backlog comes when there is room."""
    tenant: str
    priority: int
    prompt_tokens: int
    answer_tokens: int
    """How long its answer will be: the runner knows, the scheduler does not."""
    shared_prefix_tokens: int = 0
    deadline_seconds: float | None = None
    """After its arrival."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """A tenant that keeps ``waiting`` requests waiting, and where it takes them from."""

    tenant: str
    waiting: int
    demands: Iterator[Demand]


def assign(
    arrivals: Iterable[Arrival], tenants: Sequence[SimulatedTenant], random: Random
) -> Iterator[Demand]:
    """Give each arrival to a tenant that takes a share of them, drawn by these shares."""
    open_loop = [tenant for tenant in tenants if not tenant.backlog]
    if not open_loop:
        return
    shares = [tenant.share for tenant in open_loop]
    for arrival in arrivals:
        tenant = random.choices(open_loop, shares)[0]
        yield _demand(tenant, arrival.seconds, arrival.lengths, random)


def backlogs(tenants: Sequence[SimulatedTenant], draw: DrawLengths, seed: int) -> tuple[Backlog, ...]:
    """The tenants that keep a backlog. Each has a generator of its own: no order of events changes it."""
    return tuple(
        Backlog(tenant.name, tenant.backlog, _endless(tenant, draw, Random(f"{seed} {tenant.name}")))
        for tenant in tenants
        if tenant.backlog
    )


def _endless(tenant: SimulatedTenant, draw: DrawLengths, random: Random) -> Iterator[Demand]:
    while True:
        yield _demand(tenant, 0.0, draw(random), random)


def _demand(tenant: SimulatedTenant, seconds: float, lengths: Lengths, random: Random) -> Demand:
    name = random.choices(list(tenant.classes), list(tenant.classes.values()))[0]
    prompt_tokens = tenant.prompt_tokens or lengths.prompt_tokens
    return Demand(
        seconds=seconds,
        tenant=tenant.name,
        priority=PRIORITIES[name],
        prompt_tokens=prompt_tokens + tenant.shared_prefix_tokens,
        answer_tokens=tenant.answer_tokens or lengths.answer_tokens,
        shared_prefix_tokens=tenant.shared_prefix_tokens,
        deadline_seconds=tenant.deadlines.get(name),
    )
