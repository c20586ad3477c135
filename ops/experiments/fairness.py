"""Does one heavy tenant hurt nine light ones? Fair beside first come first served, on modelled hardware.

    python ops/experiments/fairness.py [--seconds 120] [--json]

1. Everyone always has requests waiting (the heavy tenant 50, each light one 2): Jain's index of the service
   that each got, in GPU seconds.
2. In the same load: P99 of the light tenants' TTFT, over the same without the heavy one on a device of nine
   tenths the speed (the same total share).
3. The same ratio when the light tenants send only --load of what nine tenths of the device can do, so that
   they seldom wait for each other: what is left is what the heavy tenant's running requests cost them.

Exit code 1 when fair is below 0.99 in the first, or above 1.5 in the second.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from headway.services.arrivals import lognormal_lengths, poisson
from headway.services.hardware import Coefficients, Hardware, StepWork
from headway.services.percentile import percentile
from headway.services.simulate import simulation
from headway.services.simulate_settings import SimulateSettings
from headway.services.simulated_device import Device, find_device
from headway.services.simulated_tenants import SimulatedTenant
from headway.services.simulation_report import jain_index, ttft_seconds
from headway.services.simulation_run import SimulationRun
from headway.services.traffic import assign

HEAVY = SimulatedTenant("heavy", backlog=50)
LIGHT = tuple(f"light{place}" for place in range(9))
LIGHT_SHARE = 0.9
DRAW = lognormal_lengths(400, 100, 0.8)
LEAST_JAIN, MOST_TIMES = 0.99, 1.5


@dataclass(frozen=True)
class Slower:
    """The same hardware at a share of its speed."""

    hardware: Hardware
    speed: float

    @property
    def coefficients(self) -> Coefficients:
        """Prices, as much higher."""
        fast = self.hardware.coefficients
        return Coefficients(
            fast.per_step / self.speed,
            fast.per_new_token / self.speed,
            fast.per_context_token / self.speed,
            fast.per_pair / self.speed,
        )

    def seconds(self, work: StepWork) -> float:
        """Time of a step."""
        return self.hardware.seconds(work) / self.speed


def run(
    settings: SimulateSettings, policy: str, device: Device, tenants: tuple[SimulatedTenant, ...], rate: float
) -> SimulationRun:
    """One simulation; ``rate``: requests a second of all open-loop tenants together."""
    seconds = settings.duration or 0.0
    arrivals = poisson(rate, seconds, DRAW, Random(settings.seed)) if rate else iter(())
    demands = list(assign(arrivals, tenants, Random(settings.seed + 1)))
    return simulation(settings, policy, device=device, demands=demands, tenants=tenants, draw=DRAW).run()


def light_p99(run_: SimulationRun) -> float:
    """P99 of the TTFT of all light tenants together."""
    times = [ttft_seconds(j) for j in run_.journeys if j.demand.tenant != HEAVY.name]
    return percentile(sorted(time for time in times if time is not None), 99)


def measure(settings: SimulateSettings, policy: str, device: Device, rate: float) -> dict[str, Any]:
    """All three questions for one policy."""
    slower = replace(device, hardware=Slower(device.hardware, LIGHT_SHARE))
    waiting = tuple(SimulatedTenant(name, backlog=2) for name in LIGHT)
    sending = tuple(SimulatedTenant(name) for name in LIGHT)
    together = run(settings, policy, device, (HEAVY, *waiting), 0.0)
    service = together.backlogged_service
    whole = sum(service.values())
    figures: dict[str, Any] = {
        "jain_index": jain_index(service, {}),
        "heavy_share": round(service[HEAVY.name] / whole, 4),
        "least_light_share": round(min(service[name] for name in LIGHT) / whole, 4),
    }
    pairs = {
        "backlogged": (together, run(settings, policy, slower, waiting, 0.0)),
        "below_share": (
            run(settings, policy, device, (HEAVY, *sending), rate),
            run(settings, policy, slower, sending, rate),
        ),
    }
    for name, (beside, alone) in pairs.items():
        with_heavy, without = light_p99(beside), light_p99(alone)
        figures[f"{name}_ttft_p99"] = round(with_heavy, 4)
        figures[f"{name}_ttft_p99_without_heavy"] = round(without, 4)
        figures[f"{name}_times"] = round(with_heavy / without, 3)
    return figures


def capacity(settings: SimulateSettings, device: Device) -> float:
    """Requests a second of this kind that the device finishes when it never runs dry."""
    tenants = (SimulatedTenant("all", backlog=50),)
    done = run(settings, "fcfs", device, tenants, 0.0)
    return sum(j.finish_seconds is not None for j in done.journeys) / done.end_seconds


def main() -> int:
    """Measure and print both arms."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="simulated, per run")
    parser.add_argument("--load", type=float, default=0.7, help="of nine tenths of the device")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    settings = SimulateSettings(
        duration=options.seconds, max_sequences=64, max_tokens=1000, seed=options.seed, is_overcommitted=True
    )
    device = find_device(settings)
    rate = options.load * LIGHT_SHARE * capacity(replace(settings, duration=options.seconds / 4), device)
    measured = {policy: measure(settings, policy, device, rate) for policy in ("fair", "fcfs")}
    if options.json:
        print(json.dumps(measured))
    else:
        print(f"{options.seconds:g} s, light tenants {rate:.1f} requests/s together, on {device.name}")
        for name in measured["fair"]:
            print(f"{name:36}" + "".join(f"{arm} {figures[name]:<12}" for arm, figures in measured.items()))
    fair = measured["fair"]
    return 0 if fair["jain_index"] >= LEAST_JAIN and fair["backlogged_times"] <= MOST_TIMES else 1


if __name__ == "__main__":
    sys.exit(main())
