"""How far the calibrated simulator is from the real engine, on three workloads that it was not fitted on.

    .venv/bin/python ops/experiments/simulator_error.py --trace azure_llm_2023_conv.csv
    .venv/bin/python ops/experiments/simulator_error.py --trace FILE --workload bursts --output report.json
    .venv/bin/python ops/experiments/simulator_error.py --trace FILE --service     from HTTP to SSE

Measures steps before and after each workload (half of --calibrate each), so that a machine whose speed
drifts is compared with itself; then simulates the same requests, which the fit has never seen. Prints what
was predicted, what was measured and the ratio. Exit code 1 when a throughput is off by more than 10 %, or a
P99 TTFT by more than 25 %.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Protocol

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is loaded, as `headway worker` does

from headway.services.arrivals import (
    Arrival,
    DrawLengths,
    Lengths,
    burst,
    fitting_scale,
    lognormal_lengths,
    read_trace,
)
from headway.services.calibrate import StepWatch, calibration_of, load_host, measuring_settings
from headway.services.engine_run import EngineRun
from headway.services.model_host import ModelHost
from headway.services.predict import predict
from headway.services.settings import WorkerSettings, default_cache_dir
from headway.services.simulated_device import Device, device_of
from headway.services.simulation_report import Limits, report
from headway.services.simulation_run import SimulationRun
from headway.services.traffic import Demand

THROUGHPUT_ERROR = 0.10
TTFT_ERROR = 0.25
CONTEXT_TOKENS = 2048
NAMES = ("conversations", "bursts", "long-prompts")
LIMITS = Limits(1.0, 0.1)


@dataclass(frozen=True)
class Workload:
    """``load``: of what the simulator says the machine can do of these lengths."""

    name: str
    lengths: DrawLengths
    load: float
    variation: float = 1.0


def workloads(trace: Path) -> list[Workload]:
    """Conversations at moderate load, bursts, and long prompts with short answers."""
    conversations, bursts, long_prompts = NAMES
    return [
        Workload(conversations, scaled(trace), 0.6),
        Workload(bursts, bounded(lognormal_lengths(150, 50, 0.8)), 0.6, variation=3.0),
        Workload(long_prompts, lambda drawn: Lengths(drawn.randint(800, 1800), drawn.randint(8, 24)), 0.6),
    ]


def scaled(trace: Path) -> DrawLengths:
    """The trace's lengths, so much shorter that all but one in a hundred fit; those are cut."""
    rows = [arrival.lengths for arrival in read_trace(trace)]
    factor = fitting_scale(rows, CONTEXT_TOKENS, share=0.99)

    def draw(drawn: Random) -> Lengths:
        row = drawn.choice(rows)
        return Lengths(max(1, round(factor * row.prompt_tokens)), max(1, round(factor * row.answer_tokens)))

    return bounded(draw)


def bounded(draw: DrawLengths) -> DrawLengths:
    """Prompt and answer cut to the context."""

    def cut(drawn: Random) -> Lengths:
        lengths = draw(drawn)
        answer = min(lengths.answer_tokens, CONTEXT_TOKENS // 2)
        return Lengths(min(lengths.prompt_tokens, CONTEXT_TOKENS - answer), answer)

    return cut


def demands_of(arrivals: Iterable[Arrival]) -> list[Demand]:
    """One tenant's interactive requests."""
    return [
        Demand(arrival.seconds, "default", 0, arrival.lengths.prompt_tokens, arrival.lengths.answer_tokens)
        for arrival in arrivals
    ]


class Bench(Protocol):
    """What is measured."""

    def measure(self, seconds: float) -> None:
        """Take steps of all shapes for so long, and keep what they took."""
        ...

    def device(self, seed: int) -> tuple[Device, float]:
        """All steps kept so far as a device, and how far the fit is off in the median."""
        ...

    def run(self, demands: Sequence[Demand]) -> SimulationRun:
        """Answer everything, each from when it comes."""
        ...


class EngineBench:
    """One engine to measure steps on, one to serve; they take turns, and whoever waits sleeps."""

    def __init__(self, worker: WorkerSettings, seed: int) -> None:
        self._worker = worker
        self._measured: ModelHost = load_host(measuring_settings(worker))
        self._served: ModelHost = load_host(worker)
        self._watch = StepWatch(self._measured, worker.max_sequences)
        self._watch.warm_up()
        vocab_size = self._served.model.tokenizer.vocab_size
        self._run = EngineRun(self._served.engine, vocab_size, LIMITS.tpot_seconds, seed=seed)
        self.run(demands_of(burst(8.0, 3.0, 1.0, lognormal_lengths(100, 20), Random(0))))  # thrown away

    def measure(self, seconds: float) -> None:
        """On the first engine."""
        self._watch.measure(seconds)

    def device(self, seed: int) -> tuple[Device, float]:
        """Of the first engine."""
        calibration = calibration_of(self._measured, self._worker, self._watch.steps)
        return device_of(calibration, seed), calibration.error_median

    def run(self, demands: Sequence[Demand]) -> SimulationRun:
        """On the second engine."""
        return self._run.run(demands)


def compare(
    bench: Bench, workload: Workload, worker: WorkerSettings, options: argparse.Namespace
) -> dict[str, Any]:
    """Measure steps, serve the workload, measure steps again, simulate."""
    bench.measure(options.calibrate / 2)
    rate = workload.load * capacity(workload, worker, bench.device(options.seed)[0], options.seed)
    demands = demands_of(
        burst(rate, options.seconds, workload.variation, workload.lengths, Random(options.seed))
    )
    measured = bench.run(demands)
    bench.measure(options.calibrate / 2)
    device, error = bench.device(options.seed)
    return {
        "workload": workload.name,
        "of": "service" if options.service else "engine",
        "requests": len(demands),
        "rate": round(rate, 3),
        "before_ms": round(1e3 * device.before_seconds, 1),
        "fit_error_median": round(error, 4),
        "predicted": figures(predict(worker, device, demands, LIMITS)),
        "measured": figures(measured),
    }


def capacity(workload: Workload, worker: WorkerSettings, device: Device, seed: int) -> float:
    """Requests a second that the simulator serves when all of 200 are there at once."""
    drawn = Random(seed + 1)
    at_once = demands_of(Arrival(0.0, workload.lengths(drawn)) for _ in range(200))
    return len(at_once) / predict(worker, device, at_once, LIMITS).end_seconds


def figures(run: SimulationRun) -> dict[str, Any]:
    """Of one run, by the report of ``headway simulate``."""
    read = report(run, LIMITS, {})
    told = {
        "tokens_per_second": read["tokens_per_second"],
        "ttft_p50": read["ttft_seconds"]["p50"],
        "ttft_p99": read["ttft_seconds"]["p99"],
        "tpot_p50": read["tpot_seconds"]["p50"],
    }
    if not run.busy_seconds:  # a service does not tell
        return told
    return told | {
        "busy_share": round(run.busy_seconds / run.end_seconds, 3),
        "steps": run.steps,
        "tokens_per_busy_second": round(
            sum(journey.tokens for journey in run.journeys) / run.busy_seconds, 1
        ),
    }


def ratios(row: dict[str, Any]) -> dict[str, float]:
    """Predicted over measured."""
    return {name: row["predicted"][name] / row["measured"][name] for name in row["measured"]}


def main() -> int:
    """Run, print, say whether all is inside."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument(
        "--workload", action="append", choices=NAMES, help="one of them; may be given several times"
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--calibrate", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--seconds", type=float, default=60.0, help="of arrivals")
    parser.add_argument("--service", action="store_true", help="the whole service instead of its engine")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="write all figures, added to what it holds")
    options = parser.parse_args()
    worker = WorkerSettings(
        model=options.model,
        cache_dir=default_cache_dir(),
        ttft_seconds=LIMITS.ttft_seconds,
        tpot_seconds=LIMITS.tpot_seconds,
        max_model_len=CONTEXT_TOKENS,
        kv_cache_bytes=1 << 30,
    )
    chosen = [one for one in workloads(options.trace) if one.name in (options.workload or [one.name])]
    rows = run_all(chosen, worker, options)
    for row in rows:
        show(row)
    if options.output is not None:
        kept: list[Any] = json.loads(options.output.read_text()) if options.output.exists() else []
        options.output.write_text(json.dumps(kept + rows, indent=2) + "\n")
    return 0 if all(is_inside(row) for row in rows) else 1


def run_all(
    chosen: Sequence[Workload], worker: WorkerSettings, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Compare each, against the engine or the service."""
    if not options.service:
        bench: Bench = EngineBench(worker, options.seed)
        return [compare(bench, workload, worker, options) for workload in chosen]
    from simulator_service import serving

    # The worker of `headway up` is given no limits.
    worker = replace(worker, ttft_seconds=None, tpot_seconds=None)
    with tempfile.TemporaryDirectory(prefix="headway-") as folder, serving(worker, Path(folder)) as service:
        service.wait_ready()
        return [compare(service, workload, worker, options) for workload in chosen]


def is_inside(row: dict[str, Any]) -> bool:
    """Whether the prediction is as near as it has to be."""
    found = ratios(row)
    return (
        abs(found["tokens_per_second"] - 1) <= THROUGHPUT_ERROR and abs(found["ttft_p99"] - 1) <= TTFT_ERROR
    )


def show(row: dict[str, Any]) -> None:
    """One workload, for people."""
    verdict = "inside" if is_inside(row) else "OUTSIDE"
    print(f"\n{row['workload']}: {row['requests']} requests at {row['rate']}/s, {verdict}")
    print(f"  {'':24}{'predicted':>12}{'measured':>12}{'ratio':>8}")
    for name, ratio in ratios(row).items():
        print(f"  {name:24}{row['predicted'][name]:12.3f}{row['measured'][name]:12.3f}{ratio:8.3f}")


if __name__ == "__main__":
    sys.exit(main())
