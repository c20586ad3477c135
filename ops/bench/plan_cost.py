"""What one step's planning costs, and how it grows with the line that waits.

The line is kept at its length: whenever an answer ends, a request joins. Prints medians and 99th
percentiles of ``plan`` and ``apply`` in milliseconds of processor time; exit code 1 when a median is above
its limit.

    .venv/bin/python ops/bench/plan_cost.py            [--policy fair] [--steps 400]
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from dataclasses import dataclass
from random import Random

from headway.engine.scheduler import Scheduler
from headway.engine.values import RequestSpec, Sampled, Sampling, StepPlan, StepResult
from headway.services.collector import look_for_cycles_seldom
from headway.services.hardware import GPUS, MODELS, Roofline, StepWork
from headway.services.percentile import percentile
from headway.services.simulate_settings import SimulateSettings
from headway.services.simulated_device import Device
from headway.services.simulated_scheduler import build_scheduler
from headway.services.simulation import ANSWER_TOKEN

CASES = ((32, 100, 10, 0.25), (256, 1000, 100, 1.0), (256, 3000, 100, None), (256, 10_000, 100, None))
"""Running, waiting, tenants, and the most milliseconds that the median may take."""
HARDWARE = Roofline(GPUS["h100"], MODELS["llama-3.1-8b"], 1)
DEVICE = Device("ample", HARDWARE, 1 << 20, 1 << 17, HARDWARE.model.kv_bytes_per_token, 50e9)
"""KV for everyone: what is measured is the line and the batch, not preemption."""


@dataclass
class Load:
    """A scheduler with a full batch and a line that does not get shorter."""

    scheduler: Scheduler
    tenants: int
    random: Random
    now: float = 0.0
    serial: int = 0

    def add(self) -> None:
        """One more request of a random tenant."""
        self.serial += 1
        spec = RequestSpec(
            request_id=f"r{self.serial}",
            epoch=0,
            prompt_token_ids=(self.serial,) * self.random.randint(50, 400),
            sampling=Sampling(temperature=0.0),
            max_tokens=self.random.randint(100, 400),
            tenant=f"t{self.random.randrange(self.tenants)}",
            priority=self.random.choices((0, 1, 2), (2, 5, 3))[0],
            arrival_seconds=self.now,
        )
        self.scheduler.add(spec)

    def step(self) -> tuple[float, float]:
        """Processor seconds of one plan and its apply."""
        start = time.process_time()
        plan = self.scheduler.plan(self.now)
        planned = time.process_time()
        assert plan is not None
        result = StepResult(plan.step, sampled_of(plan), seconds_of(plan))
        self.now += result.elapsed_seconds
        before = time.process_time()
        emissions = self.scheduler.apply(plan, result, self.now)
        applied = time.process_time()
        for emission in emissions:
            if emission.finish_reason is not None:
                self.add()
        return planned - start, applied - before


def sampled_of(plan: StepPlan) -> tuple[Sampled, ...]:
    """One token for each chunk that samples."""
    return tuple(Sampled(chunk.key, ANSWER_TOKEN) for chunk in plan.chunks if chunk.samples)


def seconds_of(plan: StepPlan) -> float:
    """The step on the modelled hardware."""
    sizes = [(chunk.start, len(chunk.token_ids)) for chunk in plan.chunks]
    pairs = sum(tokens * (start + 0.5 * tokens) for start, tokens in sizes)
    work = StepWork(sum(t for _, t in sizes), sum(s + t for s, t in sizes), pairs, len(plan.chunks))
    return HARDWARE.seconds(work)


def measure(
    policy: str, case: tuple[int, int, int, float | None], steps: int
) -> tuple[list[float], list[float]]:
    """Plan and apply times of ``steps`` steps with a full batch."""
    running, waiting, tenants, _ = case
    settings = SimulateSettings(max_sequences=running, max_batch_tokens=2048)
    scheduler = build_scheduler(settings, policy, DEVICE, weights={})
    load = Load(scheduler, tenants, Random(1))
    for _ in range(running + waiting):
        load.add()
    while scheduler.load.running < running:
        load.step()
    for _ in range(steps // 4):
        load.step()
    gc.collect()
    gc.freeze()
    times = [load.step() for _ in range(steps)]
    gc.unfreeze()
    return [plan for plan, _ in times], [apply for _, apply in times]


def main() -> int:
    """Measure all cases and compare with the limits."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policy", default="fair")
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    look_for_cycles_seldom()
    print(f"{options.policy}: milliseconds")
    print(f"{'running':>8}{'waiting':>9}{'tenants':>9}{'plan':>9}{'P99':>9}{'apply':>9}{'limit':>9}")
    is_good = True
    for case in CASES:
        plans, applies = measure(options.policy, case, options.steps)
        median, limit = 1e3 * statistics.median(plans), case[3]
        is_good = is_good and (limit is None or median <= limit)
        p99 = 1e3 * percentile(plans, 99)
        apply = 1e3 * statistics.median(applies)
        shown = "" if limit is None else f"{limit:9.2f}"
        print(f"{case[0]:8}{case[1]:9}{case[2]:9}{median:9.3f}{p99:9.3f}{apply:9.3f}{shown}")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
