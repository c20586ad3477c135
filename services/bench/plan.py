"""Which requests a point sends when: drawn from the seed, so every arm that is compared gets the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Final

from headway.services.arrivals import (
    Arrival,
    DrawLengths,
    Lengths,
    burst,
    fitting_scale,
    lengths_of,
    lognormal_lengths,
    on_off,
    poisson,
    read_trace,
    replay,
    scaled,
)
from headway.services.bench.answer import Planned
from headway.services.bench.settings import BenchSettings
from headway.services.errors import UsageError
from headway.services.simulated_tenants import ClassName, SimulatedTenant, read_tenants
from headway.services.traffic import Backlog, Demand, assign, backlogs

MOST_REQUESTS: Final = 1_000_000
"""Of one point: each is a task, and its times are kept."""


@dataclass(frozen=True, slots=True)
class Work:
    """Where all points take their requests from."""

    settings: BenchSettings
    tenants: tuple[SimulatedTenant, ...]
    trace: tuple[Arrival, ...]
    draw: DrawLengths
    length_scale: float
    context_tokens: int | None
    cut_rows: int
    """Rows of the trace that did not fit the context and were shortened."""

    def open_loop(self, rate: float, seconds: float, seed: str) -> Iterator[Planned]:
        """``rate`` requests a second for so long, by their times."""
        settings, random = self.settings, Random(seed)
        process = settings.arrivals or ("trace" if self.trace else "poisson")
        coming: Iterator[Arrival]
        if process == "trace":
            coming = replay(self.trace, rate / self.trace_rate, seconds)
        elif process == "poisson":
            coming = poisson(rate, seconds, self.draw, random)
        elif process == "burst":
            coming = burst(rate, seconds, settings.burstiness, self.draw, random)
        else:
            coming = on_off(rate, seconds, (settings.on_seconds, settings.off_seconds), self.draw, random)
        return self.planned(assign(coming, self.tenants, Random(f"{seed} tenants")), f"{seed} readers")

    def closed_loop(self, seed: str) -> Iterator[Planned]:
        """Without end; the time of each is when a client comes to it."""
        random = Random(seed)
        endless = (Arrival(0.0, self.draw(random)) for _ in iter(int, 1))
        return self.planned(assign(endless, self.tenants, Random(f"{seed} tenants")), f"{seed} readers")

    def backlogs(self) -> tuple[Backlog, ...]:
        """The tenants that keep requests waiting, whatever happens."""
        return backlogs(self.tenants, self.draw, self.settings.seed)

    @property
    def replays(self) -> bool:
        """Whether requests come when those of the trace came."""
        return (
            bool(self.trace) and self.settings.arrivals in (None, "trace") and not self.settings.concurrencies
        )

    @property
    def rates(self) -> tuple[float, ...]:
        """What is measured in open loop, in requests a second."""
        if not self.settings.rate_scales:
            return self.settings.rates
        return tuple(float(f"{scale * self.trace_rate:.4g}") for scale in self.settings.rate_scales)

    @property
    def trace_rate(self) -> float:
        """Requests a second of the trace as recorded."""
        return len(self.trace) / max(1e-9, self.trace[-1].seconds)

    def planned(self, demands: Iterable[Demand], seed: str) -> Iterator[Planned]:
        """Which readers leave early or read slowly: from a generator of its own, so nothing else changes."""
        random, settings = Random(seed), self.settings
        for number, demand in enumerate(demands):
            leaves, is_slow = random.random() < settings.cancel_ratio, random.random() < settings.slow_ratio
            after = random.randint(1, max(1, demand.answer_tokens - 1))
            fitting = self._fit(demand)
            yield Planned(number, fitting.seconds, fitting, after if leaves else None, is_slow and not leaves)

    def _fit(self, demand: Demand) -> Demand:
        context = self.context_tokens
        if context is None or demand.prompt_tokens + demand.answer_tokens <= context:
            return demand
        answer = min(demand.answer_tokens, max(1, context // 2))
        return replace(
            demand, prompt_tokens=min(demand.prompt_tokens, context - answer), answer_tokens=answer
        )


def make_work(settings: BenchSettings, context_tokens: int | None) -> Work:
    """Read what the settings name. Raises UsageError."""
    context = settings.context_tokens or context_tokens
    trace = () if settings.trace is None else read_trace(settings.trace)
    if settings.arrivals == "trace" and not trace:
        raise UsageError("--arrivals trace needs --trace FILE")
    if settings.rate_scales and not trace:
        raise UsageError("--rate-scale is for a trace: give --trace FILE, or --rate")
    tenants = (_nobody(settings),) if settings.tenants is None else read_tenants(settings.tenants)
    if settings.concurrencies and any(tenant.backlog for tenant in tenants):
        raise UsageError("a tenant with a backlog is for open loop: --rate, not --concurrency")
    scale = _scale(settings, trace, context)
    trace = tuple(Arrival(row.seconds, scaled(row.lengths, scale)) for row in trace)
    cut = 0 if context is None else sum(sum(_pair(row.lengths)) > context for row in trace)
    draw = (
        lengths_of(trace)
        if trace
        else lognormal_lengths(settings.prompt_tokens, settings.answer_tokens, settings.length_spread)
    )
    return Work(settings, tenants, trace, draw, scale, context, cut)


def _nobody(settings: BenchSettings) -> SimulatedTenant:
    """Who asks where no tenants are given."""
    deadlines: dict[ClassName, float] = (
        {} if settings.deadline_seconds is None else {"standard": settings.deadline_seconds}
    )
    return SimulatedTenant("default", shared_prefix_tokens=settings.shared_prefix_tokens, deadlines=deadlines)


def _scale(settings: BenchSettings, trace: tuple[Arrival, ...], context: int | None) -> float:
    if settings.length_scale is not None:
        return settings.length_scale
    if not trace:
        raise UsageError("--length-scale fit is for a trace: give --trace FILE")
    if context is None:
        raise UsageError(
            "--length-scale fit needs the model's context, and the server does not tell it",
            hint="--context TOKENS",
        )
    return fitting_scale([row.lengths for row in trace], context)


def _pair(lengths: Lengths) -> tuple[int, int]:
    return lengths.prompt_tokens, lengths.answer_tokens
