"""FairBatching's claim (arXiv 2510.14392) near saturation: time budgets against decode-first fixed chunks.

    python ops/experiments/fair_batching.py TRACE.csv [--rate-scale 3.5] [--seconds 150] [--json]

Arms: decodes first, then prefill up to a fixed number of tokens (Sarathi-Serve, vLLM), for several numbers;
and budgets of predicted time from per-token deadlines (the fair policy). Attainment: the share of requests
none of whose tokens came later than arrival + TTFT + j·TPOT, and of those whose mean gap is within TPOT. The
last column is each arm's P99 TTFT over that of predicted time.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from headway.services.policies import FIXED_CHUNKS
from headway.services.simulate import simulate
from headway.services.simulate_settings import SimulateSettings

CHUNKS = (256, 512, 1024, 2048, 4096)
LARGEST_STEP_TOKENS = 8192
"""With time budgets tokens are only a backstop."""


def measure(settings: SimulateSettings, policy: str, max_batch_tokens: int) -> dict[str, Any]:
    """One arm."""
    arm = replace(settings, policies=(policy,), max_batch_tokens=max_batch_tokens)
    (figures,) = simulate(arm).figures["policies"]
    return {
        "arm": f"{max_batch_tokens} tokens" if policy == FIXED_CHUNKS else "predicted time",
        "ttft_p50": figures["ttft_seconds"]["p50"],
        "ttft_p99": figures["ttft_seconds"]["p99"],
        "tpot_p50": figures["tpot_seconds"]["p50"],
        "tpot_p99": figures["tpot_seconds"]["p99"],
        "itl_p99": figures["itl_seconds"]["p99"],
        "tokens_in_time": figures["token_deadline_attainment"],
        "tpot_attainment": figures["tpot_attainment"],
        "goodput_per_second": figures["goodput_per_second"],
    }


def main() -> int:
    """Measure all arms and print them beside each other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    parser.add_argument("--rate-scale", type=float, default=3.5)
    parser.add_argument("--seconds", type=float, default=150.0, help="simulated")
    parser.add_argument("--ttft", type=float, default=1.0)
    parser.add_argument("--tpot", type=float, default=0.05)
    parser.add_argument("--hardware", default="h100")
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    settings = SimulateSettings(
        trace=options.trace,
        rate_scale=options.rate_scale,
        duration=options.seconds,
        hardware=options.hardware,
        model=options.model,
        ttft_seconds=options.ttft,
        tpot_seconds=options.tpot,
        is_overcommitted=True,
    )
    timed = measure(settings, "fair", LARGEST_STEP_TOKENS)
    arms = [measure(settings, FIXED_CHUNKS, chunk) for chunk in CHUNKS]
    for arm in [*arms, timed]:
        arm["ttft_p99_times"] = round(arm["ttft_p99"] / timed["ttft_p99"], 2)
    if options.json:
        print(json.dumps([*arms, timed]))
        return 0
    print("".join(f"{name:>20}" for name in timed))
    for arm in [*arms, timed]:
        print("".join(f"{value:>20}" for value in arm.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
