"""``headway simulate``: policies side by side on the same arrivals, hardware and tenants."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from headway.engine.blocks import BlockLedger
from headway.engine.limits import StepLimits
from headway.engine.policy import POLICIES
from headway.engine.scheduler import Scheduler
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
from headway.services.hardware import GPUS, MODELS, Coefficients, Hardware, Roofline
from headway.services.simulate_settings import SimulateSettings
from headway.services.simulated_tenants import ONE_TENANT, SimulatedTenant, read_tenants
from headway.services.simulation import END_TOKENS, Simulation, SimulationRun
from headway.services.simulation_report import Limits, report
from headway.services.traffic import Demand, assign, backlogs

THIS_MACHINE: Final = "this-machine"
_UNBOUNDED: Final = 1 << 31
"""Of the waiting line: a simulation shows what queues, it does not turn it away."""


@dataclass(frozen=True, slots=True)
class Device:
    """What the scheduler runs on."""

    name: str
    hardware: Hardware
    kv_tokens: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class Simulated:
    """All runs and their figures."""

    figures: dict[str, Any]
    runs: dict[str, SimulationRun]


def simulate(settings: SimulateSettings) -> Simulated:
    """Run every policy; raises UsageError for what cannot be simulated as asked."""
    unknown = [name for name in settings.policies if name not in POLICIES]
    if unknown:
        raise UsageError(f"there is no policy {unknown[0]}", hint=f"one of {', '.join(POLICIES)}")
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
) -> Simulation:
    """One policy's simulation, ready to run."""
    limits = step_limits(settings)
    ledger = BlockLedger(max(1, device.kv_tokens // settings.block_size), settings.block_size)
    scheduler = Scheduler(ledger, limits, POLICIES[policy](), END_TOKENS)
    longest = max((demand.answer_tokens for demand in demands), default=settings.answer_tokens)
    return Simulation(
        scheduler,
        device.hardware,
        demands,
        backlogs=backlogs(tenants, draw, settings.seed),
        until_seconds=settings.duration or 0.0,
        answer_limit=settings.max_tokens or longest,
        longest_tokens=min(device.max_model_len, ledger.block_count * ledger.block_size),
        tpot_seconds=settings.tpot_seconds,
    )


def step_limits(settings: SimulateSettings) -> StepLimits:
    """The scheduler's caps; raises UsageError when they cannot work together."""
    try:
        return StepLimits(
            max_step_tokens=settings.max_batch_tokens,
            max_sequences=settings.max_sequences,
            max_waiting=_UNBOUNDED,
        )
    except ValueError as error:
        raise UsageError(str(error)) from None


def find_device(settings: SimulateSettings) -> Device:
    """The hardware by name, by coefficients, or as measured on this machine."""
    if settings.coefficients is not None:
        kv_tokens = settings.kv_tokens or 1 << 20
        return Device("coefficients", settings.coefficients, kv_tokens, kv_tokens)
    if settings.hardware == THIS_MACHINE:
        return _this_machine(settings)
    if settings.hardware not in GPUS:
        raise UsageError(
            f"there is no hardware {settings.hardware}", hint=f"one of {', '.join(GPUS)}, {THIS_MACHINE}"
        )
    if settings.model not in MODELS:
        raise UsageError(f"there is no model {settings.model}", hint=f"one of {', '.join(MODELS)}")
    model = MODELS[settings.model]
    gpus = settings.tensor_parallel or model.tensor_parallel
    try:
        roofline = Roofline(GPUS[settings.hardware], model, gpus)
    except ValueError as error:
        raise UsageError(str(error)) from None
    name = f"{gpus} {settings.hardware}" if gpus > 1 else settings.hardware
    return Device(
        f"{name} with {model.name}", roofline, settings.kv_tokens or roofline.kv_tokens, model.max_model_len
    )


def _this_machine(settings: SimulateSettings) -> Device:
    """The coefficients that ``ops/bench/calibrate.py`` fitted here."""
    if settings.calibration is None:
        raise UsageError(
            "what this machine can do is not measured yet",
            hint="python ops/bench/calibrate.py FILE, then --calibration FILE",
        )
    try:
        read = json.loads(settings.calibration.read_text())
        fitted = Coefficients(*(float(read["coefficients"][name]) for name in ("a", "b", "c", "q")))
        kv_tokens = settings.kv_tokens or int(read["kv_tokens"])
        longest = min(kv_tokens, int(read["max_model_len"]))
        return Device(f"{THIS_MACHINE} with {read['model']}", fitted, kv_tokens, longest)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{settings.calibration} is no calibration: {error!r}") from None


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
        raise UsageError(f"--arrivals {process} needs --duration")
    else:
        rate, random = settings.rate * settings.rate_scale, Random(settings.seed)
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
