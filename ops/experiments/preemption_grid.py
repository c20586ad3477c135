"""Which way to give way is best: by cost, always swap, always recompute, over a grid of loads and machines.

    python ops/experiments/preemption_grid.py [--seconds 20] [--seeds 12] [--jobs 2] [--json]

The pool holds 40 % of what the running requests would need, and interactive requests come in beside batch
work (classes.toml), so that batch requests give way. Grid: length of the prompts × bandwidth to the host ×
load. Goodput counts requests whose TTFT and mean gap are within the limits.

One answer more or less in a step changes everything after it, so each cell is run with several seeds, the
same for all three ways, and what counts is the mean of the differences seed by seed, with its 95 % interval.
By cost loses a cell to a way if it is worse by more than --tolerance in the mean, or so surely that the whole
interval is below zero.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Run:
    """One simulation: a place in the grid, a way and a seed."""

    context: int
    bandwidth: float
    load: float
    mode: PreemptionChoice
    seed: int
    seconds: float


def settings_of(run: Run) -> SimulateSettings:
    """What is simulated."""
    roofline = Roofline(GPUS["h100"], MODELS["llama-3.1-8b"], 1)
    needed = int(SEQUENCES * 1.65 * (run.context + ANSWER_TOKENS))
    return SimulateSettings(
        policies=("fair",),
        rate=run.load * requests_per_second(roofline, run.context),
        duration=run.seconds,
        prompt_tokens=run.context,
        answer_tokens=ANSWER_TOKENS,
        max_tokens=4 * ANSWER_TOKENS,
        kv_tokens=max(16_384, int(0.4 * needed)),
        host_kv_tokens=2 * needed,
        host_bandwidth=run.bandwidth,
        is_overcommitted=True,
        preemption=run.mode,
        max_sequences=SEQUENCES,
        ttft_seconds=5.0,
        tpot_seconds=0.1,
        tenants=Path(__file__).with_name("classes.toml"),
        seed=run.seed,
    )


def measure(run: Run) -> dict[str, float]:
    """Its figures."""
    figures = simulate(settings_of(run)).figures["policies"][0]
    return {
        "goodput": figures["goodput_per_second"],
        "tokens_per_second": figures["tokens_per_second"],
        "unfinished": figures["requests"] - figures["finished"] - figures["refused"],
        "swaps": figures["scheduler"]["preemptions_swap"],
        "recomputes": figures["scheduler"]["preemptions_recompute"],
    }


def difference(ours: list[float], theirs: list[float]) -> tuple[float, float]:
    """Mean of the relative differences, seed by seed, and the half of its 95 % interval (Student's t)."""
    differences = [our / their - 1 for our, their in zip(ours, theirs, strict=True)]
    if len(differences) < 2:
        return differences[0], math.inf
    spread = statistics.stdev(differences) / math.sqrt(len(differences))
    # Cornish and Fisher's expansion of Student's 97.5 % quantile: within 1 % from 4 degrees of freedom on.
    freedom, z = len(differences) - 1, 1.96
    quantile = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    return statistics.fmean(differences), quantile * spread


def cell(context: int, bandwidth: float, load: float, found: dict[Run, dict[str, float]]) -> dict[str, Any]:
    """All three ways in one cell, and by cost against each of the others."""
    ways: dict[str, list[dict[str, float]]] = {
        mode: [
            found[run]
            for run in sorted(found, key=lambda run: run.seed)
            if (run.context, run.load, run.mode) == (context, load, mode)
            and (run.bandwidth == bandwidth or mode == "recompute")
        ]
        for mode in MODES
    }
    means = {
        mode: {name: statistics.fmean(run[name] for run in runs) for name in runs[0]}
        for mode, runs in ways.items()
    }
    goodputs = {mode: [run["goodput"] for run in runs] for mode, runs in ways.items()}
    return {
        "context": context,
        "gigabytes_per_second": bandwidth / 1e9,
        "load": load,
        **means,
        "against": {mode: difference(goodputs["cost"], goodputs[mode]) for mode in MODES[1:]},
    }


def holds(found: dict[str, Any], tolerance: float) -> bool:
    """Whether by cost is at least as good as both others here."""
    return all(mean >= -tolerance and mean + half >= 0.0 for mean, half in found["against"].values())


def row(found: dict[str, Any], tolerance: float) -> str:
    """A cell as a line."""
    shown = "".join(f"{found[mode]['goodput']:8.2f}{found[mode]['tokens_per_second']:7.0f}" for mode in MODES)
    against = "".join(f"{mean:+9.1%} ± {half:4.1%}" for mean, half in found["against"].values())
    ways = f"{found['cost']['swaps']:6.1f}{found['cost']['recomputes']:6.1f}"
    place = f"{found['context']:8}{found['gigabytes_per_second']:6.0f}{found['load']:6.1f}"
    return f"{place}{shown}{against}{ways}{'' if holds(found, tolerance) else '   lost'}"


def main() -> int:
    """Measure the grid; 1 if by cost loses somewhere."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=20.0, help="of arrivals, simulated")
    parser.add_argument("--seeds", type=int, default=12, help="runs per cell and way")
    parser.add_argument("--tolerance", type=float, default=0.01, help="relative; below it two ways are equal")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    # Without copies the bandwidth makes no difference.
    runs = [
        Run(context, bandwidth, load, mode, seed, options.seconds)
        for context, load, bandwidth in product(CONTEXTS, LOADS, BANDWIDTHS)
        for mode in MODES
        if mode != "recompute" or bandwidth == BANDWIDTHS[0]
        for seed in range(options.seeds)
    ]
    with ProcessPoolExecutor(options.jobs) as pool:
        found = dict(zip(runs, pool.map(measure, runs), strict=True))
    cells = [cell(*place, found) for place in product(CONTEXTS, BANDWIDTHS, LOADS)]
    if options.json:
        print(json.dumps(cells))
    else:
        print(f"{'context':>8}{'GB/s':>6}{'load':>6}   goodput/s, tokens/s by cost, swap, recompute;")
        print(f"{'':20}   by cost against swap, against recompute; swaps and recomputes per run by cost")
        for each in cells:
            print(row(each, options.tolerance))
        good = sum(holds(each, options.tolerance) for each in cells)
        print(f"by cost at least as good as both others in {good} of {len(cells)} cells")
    return 0 if all(holds(each, options.tolerance) for each in cells) else 1


if __name__ == "__main__":
    sys.exit(main())
