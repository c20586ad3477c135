"""``headway simulate``: policies side by side on the same arrivals, hardware and tenants."""

from __future__ import annotations

import time
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from headway.services.arrivals import (
    Arrival,
    DrawLengths,
    burst,
    lengths_of,
    lognormal_lengths,
    poisson,
    read_trace,
    replay,
)
from headway.services.errors import UsageError
from headway.services.fair_settings import UNSET
from headway.services.host_link import HostLink
from headway.services.policies import POLICY_NAMES, make_policy
from headway.services.simulate_settings import SimulateSettings
from headway.services.simulated_device import Device, find_device
from headway.services.simulated_scheduler import build_scheduler
from headway.services.simulated_tenants import ONE_TENANT, SimulatedTenant, read_tenants
from headway.services.simulation import Simulation
from headway.services.simulation_report import Limits, report
from headway.services.simulation_run import SimulationRun
from headway.services.traffic import Demand, assign, backlogs

MOST_REQUESTS: Final = 1_000_000
"""Drawn for one run: all are kept until its end, about a kilobyte each. A trace may have more."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """All runs and their figures."""

    figures: dict[str, Any]
    runs: dict[str, SimulationRun]


def simulate(settings: SimulateSettings) -> Simulated:
    """Run every policy; raises UsageError for what cannot be simulated as asked."""
    unknown = [name for name in settings.policies if name not in POLICY_NAMES]
    if unknown:
        raise UsageError(f"there is no policy {unknown[0]}", hint=f"one of {', '.join(POLICY_NAMES)}")
    if "fair" not in settings.policies and settings.fair != UNSET:
        make_policy(settings.policies[0], settings.fair)  # refuses it
    if "dynamic" not in settings.policies:
        make_policy(settings.policies[0], batch_window_seconds=settings.batch_window_seconds)  # the same
    if settings.preemption == "swap" and settings.host_kv_tokens < settings.block_size:
        raise UsageError(
            "--preemption swap has nowhere to swap to", hint="--host-kv-tokens TOKENS, at least a block"
        )
    if settings.host_bandwidth is not None and not settings.host_bandwidth > 0.0:
        raise UsageError("--host-bandwidth is 0: give bytes a second", hint="or no --host-kv-tokens")
    device = find_device(settings)
    tenants = ONE_TENANT if settings.tenants is None else read_tenants(settings.tenants)
    trace = () if settings.trace is None else read_trace(settings.trace)
    draw = lengths_of(trace) if trace else lognormal_lengths(settings.prompt_tokens, settings.answer_tokens)
    demands = _demands(settings, trace, draw, tenants)
    weights = {tenant.name: tenant.weight for tenant in tenants}
    limits = Limits(settings.ttft_seconds, settings.tpot_seconds)
    runs: dict[str, SimulationRun] = {}
    reports: list[dict[str, Any]] = []
    for name in dict.fromkeys(settings.policies):
        started = time.process_time()
        runs[name] = simulation(
            settings, name, device=device, demands=demands, tenants=tenants, draw=draw
        ).run()
        cpu_seconds = round(time.process_time() - started, 3)
        reports.append({"policy": name, **report(runs[name], limits, weights), "cpu_seconds": cpu_seconds})
    return Simulated(_figures(settings, device, demands, reports), runs)


def simulation(
    settings: SimulateSettings,
    policy: str,
    *,
    device: Device,
    demands: list[Demand],
    tenants: tuple[SimulatedTenant, ...],
    draw: DrawLengths,
    knows_lengths: bool = False,
) -> Simulation:
    """One policy's simulation, ready to run. ``knows_lengths``: clients ask for what they will get."""
    longest = max((demand.answer_tokens for demand in demands), default=settings.answer_tokens)
    block_bytes = device.kv_bytes_per_token * settings.block_size
    return Simulation(
        build_scheduler(settings, policy, device, {tenant.name: tenant.weight for tenant in tenants}),
        device.hardware,
        demands,
        backlogs=backlogs(tenants, draw, settings.seed),
        until_seconds=settings.duration or 0.0,
        answer_limit=None if knows_lengths else settings.max_tokens or longest,
        longest_tokens=min(
            device.max_model_len, device.kv_tokens // settings.block_size * settings.block_size
        ),
        link=HostLink(block_bytes, device.host_bandwidth, is_beside=device.copies_beside),
        tpot_seconds=settings.tpot_seconds,
        before_seconds=device.before_seconds,
        after_seconds=device.after_seconds,
    )


def _demands(
    settings: SimulateSettings,
    trace: tuple[Arrival, ...],
    draw: DrawLengths,
    tenants: tuple[SimulatedTenant, ...],
) -> list[Demand]:
    """All open-loop requests. Times and tenants come from separate generators: neither changes the other."""
    process = settings.arrivals or ("trace" if trace else "poisson")
    if process == "trace":
        if not trace:
            raise UsageError("--arrivals trace needs --trace FILE")
        coming = replay(trace, settings.rate_scale, settings.duration)
    elif settings.duration is None:
        raise UsageError(
            f"--arrivals {process} needs --duration", hint="--duration 1m, or --trace FILE to replay one"
        )
    else:
        rate, random = settings.rate * settings.rate_scale, Random(settings.seed)
        if not rate * settings.duration <= MOST_REQUESTS:
            raise UsageError(
                f"about {rate * settings.duration:.3g} requests would come, more than {MOST_REQUESTS:,}",
                hint="lower --rate, --rate-scale or --duration",
            )
        coming = (
            poisson(rate, settings.duration, draw, random)
            if process == "poisson"
            else burst(rate, settings.duration, settings.burstiness, draw, random)
        )
    if settings.duration is None and any(tenant.backlog for tenant in tenants):
        raise UsageError("a tenant with a backlog never stops by itself: give a --duration")
    demands = list(assign(coming, tenants, Random(settings.seed + 1)))
    if not demands and not any(tenant.backlog for tenant in tenants):
        raise UsageError("no request comes in that time: raise --duration or --rate")
    return demands


def _figures(
    settings: SimulateSettings, device: Device, demands: list[Demand], reports: list[dict[str, Any]]
) -> dict[str, Any]:
    span = demands[-1].seconds - demands[0].seconds if demands else settings.duration or 0.0
    coefficients = device.hardware.coefficients
    return {
        "arrivals": {
            "process": settings.arrivals or ("trace" if settings.trace else "poisson"),
            "trace": None if settings.trace is None else str(settings.trace),
            "rate_scale": settings.rate_scale,
            "seed": settings.seed,
            "requests": len(demands),
            "span_seconds": round(span, 3),
            "per_second": round(len(demands) / span, 4) if span else 0.0,
            "prompt_tokens": sum(demand.prompt_tokens for demand in demands),
            "answer_tokens": sum(demand.answer_tokens for demand in demands),
        },
        "hardware": {
            "name": device.name,
            "kv_tokens": device.kv_tokens,
            "coefficients": {
                "a": coefficients.per_step,
                "b": coefficients.per_new_token,
                "c": coefficients.per_context_token,
                "q": coefficients.per_pair,
            },
        },
        "limits": {
            "ttft_seconds": settings.ttft_seconds,
            "tpot_seconds": settings.tpot_seconds,
            "max_sequences": settings.max_sequences,
            "max_batch_tokens": settings.max_batch_tokens,
            "block_size": settings.block_size,
        },
        "policies": reports,
    }
