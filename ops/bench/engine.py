"""The engine alone, in process: tokens per second of each arm at each concurrency, and its per-step budget.

No queue and no HTTP: what lies between this and ``make bench-peers`` is the way to the reader. Arms are the
CPU kernels and the forms of the weights; they take turns, so that whatever else the machine does meets all of
them, and a ratio says more than a figure.

    .venv/bin/python ops/bench/engine.py                       about 10 minutes on a quiet machine
    .venv/bin/python ops/bench/engine.py --rounds 1 --requests 4 --concurrencies 4 --arms native-auto

An arm that cannot run here is reported and left out. The first arm is what the others are compared with.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from named_choices import choose

if TYPE_CHECKING:
    from headway.services.profile import Budget
    from headway.services.profile_run import ProfileRun

KV_CACHE: Final = 512 << 20
"""Of each arm: nobody waits for memory."""
ARMS: Final[dict[str, dict[str, str]]] = {
    "native-auto": {"cpu_kernels": "native", "quantization": "auto"},
    "native-q4": {"cpu_kernels": "native", "quantization": "q4"},
    "native-q4-int8": {"cpu_kernels": "native", "quantization": "q4-int8"},
    "native-int8": {"cpu_kernels": "native", "quantization": "int8"},
    "native-bf16": {"cpu_kernels": "native", "quantization": "none", "kv_cache_dtype": "bf16"},
    "torch-bf16": {"cpu_kernels": "torch", "quantization": "none"},
    "torch-f32": {"cpu_kernels": "torch", "quantization": "none", "dtype": "float32"},
}
"""Settings of a worker, by the arm's name."""
DEFAULT_ARMS: Final = "native-auto,native-int8,native-bf16,torch-bf16"
Cells = dict[str, dict[int, list["Budget"]]]
"""Arm to concurrency to the rounds' budgets."""


@dataclass(frozen=True)
class Share:
    """The median over rounds of one part of the steps of a cell."""

    ms_per_step: float
    share: float


def rate(budgets: Sequence[Budget]) -> float:
    """Tokens per second, the median over rounds."""
    return statistics.median(budget.tokens / budget.wall_seconds for budget in budgets)


def ratio(budgets: Sequence[Budget], base: Sequence[Budget]) -> float:
    """Rates over those of the same rounds of another arm, the median."""
    pairs = zip(budgets, base, strict=True)
    return statistics.median(
        (own.tokens / own.wall_seconds) / (other.tokens / other.wall_seconds) for own, other in pairs
    )


def shares(budgets: Sequence[Budget]) -> dict[str, Share]:
    """The per-step budget of a cell."""
    return {
        part: Share(
            statistics.median(budget.per_step_ms(part) for budget in budgets),
            statistics.median(budget.share(part) for budget in budgets),
        )
        for part in budgets[0].seconds
    }


def build(model: str, name: str, threads: int | None, sequences: int) -> ProfileRun:
    """An arm's engine; raises ModelError when it cannot run here."""
    from headway.services.model_host import build_engine
    from headway.services.profile_run import ProfileRun
    from headway.services.settings import WorkerSettings, default_cache_dir

    chosen: dict[str, Any] = {"dtype": "bfloat16"} | ARMS[name]
    settings = WorkerSettings(
        model=model,
        threads=threads,
        max_sequences=sequences,
        kv_cache_bytes=KV_CACHE,
        cache_dir=default_cache_dir(),
        **chosen,
    )
    host = build_engine(settings)
    return ProfileRun(host.engine, host.model.tokenizer.vocab_size)


def measure(options: argparse.Namespace) -> tuple[Cells, dict[str, str]]:
    """All rounds of all arms; and the arms that cannot run, with the reason."""
    from headway.engine.errors import ModelError
    from headway.services.profile_run import RunShape

    runs: dict[str, ProfileRun] = {}
    left_out: dict[str, str] = {}
    most = max(options.concurrencies)
    for name in options.arms:
        try:
            runs[name] = build(options.model, name, options.threads, most)
        except ModelError as error:
            left_out[name] = str(error)
            continue
        runs[name].run(RunShape(most, most, answer_tokens=8))  # thrown away
    cells: Cells = {name: {count: [] for count in options.concurrencies} for name in runs}
    for number in range(options.rounds):
        names = [*runs][number % max(1, len(runs)) :] + [*runs][: number % max(1, len(runs))]
        for count in options.concurrencies:
            for name in names:
                shape = RunShape(count, max(count, options.requests))
                cells[name][count].append(runs[name].run(shape))
    return cells, left_out


def report(cells: Cells, left_out: dict[str, str]) -> dict[str, Any]:
    """All figures as values of JSON."""
    from headway.services.profile import as_json

    base = next(iter(cells), None)
    return {
        "left_out": left_out,
        "arms": {
            name: {
                str(count): {
                    "tokens_per_second": round(rate(budgets), 1),
                    "of_the_first": round(ratio(budgets, cells[base or name][count]), 3),
                    "parts": {
                        part: {"ms_per_step": round(part_of.ms_per_step, 4), "share": round(part_of.share, 4)}
                        for part, part_of in shares(budgets).items()
                    },
                    "rounds": [as_json(budget) for budget in budgets],
                }
                for count, budgets in by_count.items()
            }
            for name, by_count in cells.items()
        },
    }


def table(figures: dict[str, Any]) -> list[str]:
    """The report as lines of text: rates and shares of the parts."""
    lines: list[str] = []
    for name, cells in figures["arms"].items():
        for count, cell in cells.items():
            parts = {part: part_of for part, part_of in cell["parts"].items() if part_of["share"] >= 0.001}
            step = sum(part_of["ms_per_step"] for part_of in cell["parts"].values())
            shown = ", ".join(f"{part} {part_of['share']:.1%}" for part, part_of in parts.items())
            lines.append(
                f"{name:12} at {count:>2}: {cell['tokens_per_second']:8.1f} tokens/s "
                f"({cell['of_the_first']:.2f} of the first), step {step:7.2f} ms: {shown}"
            )
    lines += [f"{name} is left out: {reason}" for name, reason in figures["left_out"].items()]
    return lines


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; ends with exit code 2 and a message for a wrong one."""
    from headway.services.cli_profile import parse_counts
    from headway.services.errors import UsageError

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--arms", default=DEFAULT_ARMS, help=f"of {', '.join(ARMS)}")
    parser.add_argument("--concurrencies", default="1,4,16,32")
    parser.add_argument("--requests", type=int, default=32, help="of each cell, at least its concurrency")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--output", type=Path, help="write all figures as JSON")
    options = parser.parse_args(arguments)
    try:
        options.arms = choose(options.arms, ARMS, "arm")
        options.concurrencies = parse_counts(options.concurrencies, "--concurrencies")
    except (ValueError, UsageError) as error:
        parser.error(str(error))
    if options.requests < 1 or options.rounds < 1:
        parser.error("--requests and --rounds are 1 or more")
    return options


def main() -> int:
    """Measure and print the table."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is loaded, as the worker does
    options = parse()
    figures = report(*measure(options))
    if options.output is not None:
        options.output.write_text(json.dumps(figures, indent=2) + "\n")
    print("\n".join(table(figures)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
