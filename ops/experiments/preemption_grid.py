"""Which way to give way is best: by cost, always swap, always recompute, over a grid of loads and machines.

    python ops/experiments/preemption_grid.py [--seconds 30] [--json]

The pool holds 40 % of what the running requests would need, and interactive requests come in beside batch
work (classes.toml), so that batch requests give way. Grid: length of the prompts × bandwidth to the host ×
load. Goodput counts requests whose TTFT and mean gap are within the limits; throughput counts all tokens.
Prints each cell, and in how many the choice by cost is at least as good as both others (by --tolerance).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from headway.services.hardware import GPUS, MODELS, Roofline
from headway.services.simulate import simulate
from headway.services.simulate_settings import PreemptionChoice, SimulateSettings

CONTEXTS = (300, 1000, 3000)
"""Median prompt, tokens."""
BANDWIDTHS = (1e9, 8e9, 50e9)
"""Bytes per second: a busy or virtualised bus, PCIe 3, PCIe 5."""
LOADS = (0.8, 1.5)
"""Of what the device could do if memory were ample."""
ANSWER_TOKENS = 300
SEQUENCES = 48
MODES: tuple[PreemptionChoice, ...] = ("cost", "swap", "recompute")


def requests_per_second(roofline: Roofline, context: int) -> float:
    """What the device can do with a full batch of such requests, mean lengths by the log-normal's mean."""
    prices = roofline.coefficients
    prompt, answer = context * 1.65, ANSWER_TOKENS * 1.65
    prefill = prices.marginal_seconds(int(prompt), int(prompt), prompt * prompt / 2)
    decode = answer * (
        prices.per_step / SEQUENCES + prices.marginal_seconds(1, int(prompt + answer / 2), prompt)
    )
    return 1 / (prefill + decode)


def measure(settings: SimulateSettings, mode: PreemptionChoice, seeds: int) -> dict[str, Any]:
    """One cell and one way: means over the seeds, since one answer more or less changes all that follows."""
    runs = [
        simulate(replace(settings, preemption=mode, seed=seed)).figures["policies"][0]
        for seed in range(seeds)
    ]
    return {
        "goodput": statistics.fmean(run["goodput_per_second"] for run in runs),
        "tokens_per_second": statistics.fmean(run["tokens_per_second"] for run in runs),
        "unfinished": sum(run["requests"] - run["finished"] - run["refused"] for run in runs),
        "swaps": sum(int(run["scheduler"]["preemptions_swap"]) for run in runs),
        "recomputes": sum(int(run["scheduler"]["preemptions_recompute"]) for run in runs),
    }


def cell(context: int, bandwidth: float, load: float, *, seconds: float, seeds: int) -> dict[str, Any]:
    """All three ways in one cell."""
    roofline = Roofline(GPUS["h100"], MODELS["llama-3.1-8b"], 1)
    needed = int(SEQUENCES * 1.65 * (context + ANSWER_TOKENS))
    settings = SimulateSettings(
        policies=("fair",),
        rate=load * requests_per_second(roofline, context),
        duration=seconds,
        prompt_tokens=context,
        answer_tokens=ANSWER_TOKENS,
        max_tokens=4 * ANSWER_TOKENS,
        kv_tokens=max(16_384, int(0.4 * needed)),
        host_kv_tokens=2 * needed,
        host_bandwidth=bandwidth,
        is_overcommitted=True,
        max_sequences=SEQUENCES,
        ttft_seconds=5.0,
        tpot_seconds=0.1,
        tenants=Path(__file__).with_name("classes.toml"),
    )
    return {
        "context": context,
        "gigabytes_per_second": bandwidth / 1e9,
        "load": load,
        **{mode: measure(settings, mode, seeds) for mode in MODES},
    }


def row(found: dict[str, Any]) -> str:
    """A cell as a line."""
    shown = "".join(
        f"{found[mode]['goodput']:9.2f} {found[mode]['tokens_per_second']:7.0f}" for mode in MODES
    )
    counts = f"{found['cost']['swaps']:6} {found['cost']['recomputes']:5}"
    return f"{found['context']:8}{found['gigabytes_per_second']:6.0f}{found['load']:6.1f}{shown}{counts}"


def main() -> int:
    """Measure the grid."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of arrivals, simulated")
    parser.add_argument("--seeds", type=int, default=4, help="runs per cell and way")
    parser.add_argument("--tolerance", type=float, default=0.02, help="relative; below it two ways are equal")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cells: list[dict[str, Any]] = []
    if not options.json:
        print(
            f"{'context':>8}{'GB/s':>6}{'load':>6}   goodput/s, tokens/s by cost, swap, recompute; ways taken"
        )
    for place in product(CONTEXTS, BANDWIDTHS, LOADS):
        found = cell(*place, seconds=options.seconds, seeds=options.seeds)
        cells.append(found)
        if not options.json:
            print(row(found), flush=True)
    if options.json:
        print(json.dumps(cells))
        return 0
    good = sum(
        found["cost"]["goodput"] >= (1 - options.tolerance) * max(found[mode]["goodput"] for mode in MODES)
        for found in cells
    )
    print(f"by cost at least as good as both others in {good} of {len(cells)} cells")
    return 0


if __name__ == "__main__":
    sys.exit(main())
