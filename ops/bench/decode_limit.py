"""A decode step of one sequence against what its weights take to be read on this machine, in one run.

    .venv/bin/python ops/bench/decode_limit.py [--forms auto,none] [--context 225] [--rounds 30]
                                               [--array-mib 1024] [--threads N] [--json FILE]

Every round runs a few steps in each form of the weights, then reads memory with as many of the kernels' own
threads: a large array, of which no cache holds a part worth mentioning, and one as large as the form's
weights, of which the last-level cache may hold some, as it does of the weights. Told for each form: the bytes
that a step's products read (the packed form's own, the head's among them), the step, and its ratio to the
time in which so many bytes come at the rate of the large array (the limit), by the median of the rounds with
the quartiles; then the same ratio to reading the smaller array. A step is the runner's: its keys and values,
norms and Python are in it, and not in the limit. Ends with 1 if a step is above GOAL times its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as a worker does, before torch is loaded

import torch
from cpu_step import PATHS, load, step
from named_choices import choose
from read_bandwidth import Readers, array_of

from headway.engine.checkpoint import open_checkpoint
from headway.engine.model_source import resolve_model
from headway.engine.native_model import NativeModel
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import StepPlan

GOAL: Final = 1.5
REPEATS: Final = 5
"""Of each step and each small array in a round, behind one that finds others' bytes in the cache."""
NATIVE: Final = tuple(name for name, quantization in PATHS.items() if quantization is not None)


@dataclass(frozen=True)
class Round:
    """Seconds of one round in one form."""

    step: float
    large_read: float
    """Of the large array."""
    own_read: float
    """Of an array as large as the weights."""


@dataclass(frozen=True)
class Spread:
    """Of the rounds."""

    median: float
    low: float
    """Quartile."""
    high: float


@dataclass(frozen=True)
class Figures:
    """What a form's rounds say."""

    form: str
    kernels: str
    weight_bytes: int
    step_ms: float
    limit_ms: float
    """``weight_bytes`` at the rate of the large array, as are all figures of a limit."""
    bytes_per_second: float
    """Of weights, in the step."""
    ceiling_bytes_per_second: float
    ratio: Spread
    """Step over limit."""
    own_bytes_per_second: float
    """Of an array as large as the weights."""
    own_ratio: Spread
    """Step over reading that array."""

    @property
    def is_met(self) -> bool:
        """Whether the median ratio keeps within GOAL."""
        return self.ratio.median <= GOAL


def spread_of(values: Sequence[float]) -> Spread:
    """Median and quartiles; one value is all three."""
    low, middle, high = statistics.quantiles(values) if len(values) > 1 else (values[0],) * 3
    return Spread(middle, low, high)


def figures_of(
    form: str, kernels: str, weight_bytes: int, array_bytes: int, rounds: Sequence[Round]
) -> Figures:
    """``array_bytes``: of the large array. Ratios are those of the same round."""
    share = weight_bytes / array_bytes
    seconds = statistics.median(one.step for one in rounds)
    ceiling = array_bytes / statistics.median(one.large_read for one in rounds)
    return Figures(
        form,
        kernels,
        weight_bytes,
        step_ms=1e3 * seconds,
        limit_ms=1e3 * weight_bytes / ceiling,
        bytes_per_second=weight_bytes / seconds,
        ceiling_bytes_per_second=ceiling,
        ratio=spread_of([one.step / (share * one.large_read) for one in rounds]),
        own_bytes_per_second=weight_bytes / statistics.median(one.own_read for one in rounds),
        own_ratio=spread_of([one.step / one.own_read for one in rounds]),
    )


def table(found: Sequence[Figures], array_mib: int, threads: int) -> list[str]:
    """The figures as lines."""
    lines = [
        f"decode of one sequence, {threads} threads; ceiling: an array of {array_mib:,} MiB; "
        "medians (quartiles)",
        f"{'form':8} {'weights MB':>10} {'step ms':>8} {'GB/s':>6} {'ceiling':>8} {'limit ms':>9}  "
        f"{'step / limit':22} {'as large an array: GB/s, step / read'}",
    ]
    for one in found:
        told, own = one.ratio, one.own_ratio
        reached, ceiling = one.bytes_per_second / 1e9, one.ceiling_bytes_per_second / 1e9
        lines.append(
            f"{one.form:8} {one.weight_bytes / 1e6:10.1f} {one.step_ms:8.2f} "
            f"{reached:6.1f} {ceiling:8.1f} {one.limit_ms:9.2f}  "
            f"{f'{told.median:.2f} ({told.low:.2f} to {told.high:.2f})':22} "
            f"{one.own_bytes_per_second / 1e9:.1f}, {own.median:.2f} ({own.low:.2f} to {own.high:.2f})"
        )
        lines.append(f"{'':8} {one.kernels}; {'within' if one.is_met else 'ABOVE'} the goal of {GOAL}")
    return lines


def median_of(repeats: int, seconds: Callable[[], float]) -> float:
    """Of so many, after one that is thrown away."""
    seconds()
    return statistics.median([seconds() for _ in range(repeats)])


def step_seconds(runner: TorchRunner, plan: StepPlan) -> float:
    """Of one step."""
    started = time.perf_counter()
    runner.execute(plan)
    return time.perf_counter() - started


def weight_bytes(runner: TorchRunner) -> int:
    """That a decode of one sequence reads."""
    assert isinstance(runner._model, NativeModel)
    return runner._model.weight_bytes(1)


def measure(options: argparse.Namespace) -> list[Figures]:
    """All rounds of all forms, in turns."""
    torch.set_num_threads(options.threads)
    checkpoint = open_checkpoint(Path(resolve_model(options.model).path))
    runners = {form: load(checkpoint, form) for form in options.forms}
    admitted, plan = step(1, options.context, 1, checkpoint.config.vocab_size)
    readers, large = Readers(options.threads), array_of(options.array_mib << 20)
    own = {form: array_of(weight_bytes(runner)) for form, runner in runners.items()}
    for runner in runners.values():
        runner.execute(StepPlan(0, plan.chunks, admitted))

    rounds: dict[str, list[Round]] = {form: [] for form in runners}
    for _ in range(options.rounds):
        for form, runner in runners.items():
            rounds[form].append(
                Round(
                    step=median_of(REPEATS, partial(step_seconds, runner, plan)),
                    large_read=readers.seconds(large),
                    own_read=median_of(REPEATS, partial(readers.seconds, own[form])),
                )
            )
    readers.close()
    return [
        figures_of(form, runner.kernels, weight_bytes(runner), large.nbytes, rounds[form])
        for form, runner in runners.items()
    ]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; ends with exit code 2 and a message for a wrong one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--forms", default="auto,none", help=f"of {', '.join(NATIVE)}; none is bfloat16")
    parser.add_argument("--context", type=int, default=225, help="tokens, at most 2,048")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--array-mib", type=int, default=1024, help="of the array that tells the ceiling")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", type=Path, help="write all figures")
    options = parser.parse_args(arguments)
    try:
        options.forms = choose(options.forms, NATIVE, "form")
    except ValueError as error:
        parser.error(str(error))
    if not 1 <= options.context <= 2048:
        parser.error("--context is 1 to 2048")
    if min(options.rounds, options.array_mib, options.threads) < 1:
        parser.error("--rounds, --array-mib and --threads are 1 or more")
    return options


def main() -> int:
    """Measure, print, judge."""
    options = parse()
    found = measure(options)
    print("\n".join(table(found, options.array_mib, options.threads)))
    if options.json is not None:
        figures = {
            "threads": options.threads,
            "context": options.context,
            "array_mib": options.array_mib,
            "goal": GOAL,
            "forms": [{**asdict(one), "is_met": one.is_met} for one in found],
        }
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if all(one.is_met for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
