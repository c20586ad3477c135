"""The scheduler as a simulation sets it up: the worker's own parts, with a simulated device's sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headway.engine.blocks import BlockLedger
from headway.engine.cost_model import CostModel
from headway.engine.host_pool import HostPool
from headway.engine.limits import StepLimits
from headway.engine.memory import Memory
from headway.engine.preemption import Mode, PreemptionCosts, PreemptionLimits
from headway.engine.prefix_cache import PrefixCache
from headway.engine.scheduler import Scheduler
from headway.engine.values import Objective
from headway.services.errors import UsageError
from headway.services.fair_settings import UNSET
from headway.services.host_link import COPY_RUN_SECONDS
from headway.services.policies import limits_for, make_policy
from headway.services.simulate_settings import SimulateSettings
from headway.services.simulated_device import Device
from headway.services.simulation import END_TOKENS

_UNBOUNDED: Final = 1 << 31
"""Of the waiting line: a simulation shows what queues, it does not turn it away."""
MOST_BLOCKS: Final = 1 << 22
"""Each is kept track of on its own; at 16 tokens these are 67 million, more than any machine holds."""


def build_scheduler(
    settings: SimulateSettings, policy: str, device: Device, weights: Mapping[str, float]
) -> Scheduler:
    """A scheduler for one run; raises UsageError when the settings cannot work together."""
    blocks = max(1, device.kv_tokens // settings.block_size)
    for option, count in (
        ("--kv-tokens", blocks),
        ("--host-kv-tokens", settings.host_kv_tokens // settings.block_size),
    ):
        if count > MOST_BLOCKS:
            raise UsageError(
                f"{option} and --block-size make {count:,} blocks, more than {MOST_BLOCKS:,}",
                hint="fewer tokens, or larger blocks",
            )
    ledger = BlockLedger(blocks, settings.block_size, PrefixCache(settings.block_size))
    limits = limits_for(policy, step_limits(settings))
    cost = CostModel()
    scheduler = Scheduler(
        ledger,
        limits,
        make_policy(
            policy,
            settings.fair if policy == "fair" else UNSET,
            max_sequences=settings.max_sequences,
            batch_window_seconds=settings.batch_window_seconds if policy == "dynamic" else None,
        ),
        END_TOKENS,
        cost=cost,
        memory=_memory(settings, device, ledger, cost),
    )
    for tenant, weight in weights.items():
        scheduler.set_weight(tenant, weight)
    return scheduler


def step_limits(settings: SimulateSettings) -> StepLimits:
    """The scheduler's caps; every timed class has the limits that the run is judged by."""
    try:
        limits = StepLimits(
            max_step_tokens=settings.max_batch_tokens,
            max_sequences=settings.max_sequences,
            max_waiting=_UNBOUNDED,
            is_overcommitted=settings.is_overcommitted,
            max_step_seconds=settings.max_step_seconds,
            min_step_seconds=min(settings.max_step_seconds, StepLimits().min_step_seconds),
            objectives=(Objective(settings.ttft_seconds, settings.tpot_seconds),) * settings.timed_classes,
        )
    except ValueError as error:
        raise UsageError(
            str(error), hint="max_step_tokens is --max-batch-tokens, max_sequences is --max-sequences"
        ) from None
    return limits


def _memory(settings: SimulateSettings, device: Device, ledger: BlockLedger, cost: CostModel) -> Memory:
    costs = PreemptionCosts(
        block_bytes=float(device.kv_bytes_per_token * settings.block_size),
        out_bytes_per_second=device.host_bandwidth,
        in_bytes_per_second=device.host_bandwidth,
        seconds_per_run=COPY_RUN_SECONDS,
        overlap=float(device.copies_beside),
    )
    only = None if settings.preemption == "cost" else Mode(settings.preemption)
    return Memory(
        ledger,
        cost,
        is_overcommitted=settings.is_overcommitted,
        host=HostPool(ledger, settings.host_kv_tokens // settings.block_size),
        costs=costs,
        limits=PreemptionLimits(only=only),
    )
