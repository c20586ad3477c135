"""What ``headway tune`` found, as one JSON object or as text to act on."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from headway.services.simulation_report import Limits
from headway.services.tune import Confirmed, Tuned
from headway.services.tune_search import Tried
from headway.services.tune_space import Candidate, as_arguments, as_environment


def as_json(tuned: Tuned, limits: Limits, device: str) -> dict[str, Any]:
    """All figures as values of JSON."""
    return {
        "device": device,
        "limits": {"ttft_seconds": limits.ttft_seconds, "tpot_seconds": limits.tpot_seconds},
        "offered_per_second": round(tuned.offered, 4),
        "settings_tried": tuned.tried,
        "best": _tried(tuned.best),
        "options": tuned.best.candidate.options(limits),
        "usual": _tried(tuned.usual),
        "finalists": [_tried(one) for one in tuned.finalists],
        "confirmed": [
            {"settings": asdict(one.candidate), "predicted": one.predicted, "measured": one.measured}
            for one in tuned.confirmed
        ],
    }


def as_lines(tuned: Tuned, limits: Limits, device: str) -> list[str]:
    """The same for people: what to set first, and what to expect of it."""
    options = tuned.best.candidate.options(limits)
    lines = [
        f"{device}: {tuned.tried} settings tried at {tuned.offered:.2f} requests/s, "
        f"TTFT within {limits.ttft_seconds:g} s and TPOT within {1e3 * limits.tpot_seconds:g} ms",
        "",
        f"{'':34}{'goodput, requests/s':>24}{'TTFT, P99':>12}",
    ]
    lines += [_line(one, tuned) for one in tuned.finalists]
    if tuned.confirmed:
        lines += ["", f"on the real engine:{'':15}{'predicted':>12}{'measured':>12}{'TTFT, P99':>12}"]
        lines += [_confirmed(one) for one in tuned.confirmed]
    lines += ["", "Set, and expect " + _goodput(tuned.best) + " requests/s within the limits:", ""]
    lines += [f"    headway worker {as_arguments(options)}", f"    {as_environment(options)} headway up"]
    if tuned.best.goodput >= 0.99 * tuned.offered:
        lines += [
            "",
            "All of this load is served in time: --rate-scale or --rate shows how much more would be.",
        ]
    return lines


def _tried(tried: Tried[Candidate]) -> dict[str, Any]:
    margin = tried.margin
    return {
        "settings": asdict(tried.candidate),
        "goodput_per_second": round(tried.goodput, 4),
        "margin": round(margin, 4) if math.isfinite(margin) else None,
        "ttft_p99_seconds": round(tried.ttft_p99, 4),
        "loads": len(tried.scores),
    }


def _line(tried: Tried[Candidate], tuned: Tuned) -> str:
    marks = [name for name, one in (("best", tuned.best), ("as it is", tuned.usual)) if one is tried]
    shown = f"{_name(tried.candidate)}{_goodput(tried):>24}{tried.ttft_p99:10.2f} s"
    return f"{shown}  {', '.join(marks)}".rstrip()


def _confirmed(one: Confirmed) -> str:
    predicted, measured = one.predicted["goodput_per_second"], one.measured["goodput_per_second"]
    return f"{_name(one.candidate)}{predicted:12.2f}{measured:12.2f}{one.measured['ttft_p99']:10.2f} s"


def _name(candidate: Candidate) -> str:
    timed = ", timed" if candidate.is_timed else ""
    name = (
        f"{candidate.max_batch_tokens} tokens, {candidate.max_sequences} seq., blocks {candidate.block_size}"
    )
    return f"{name}{timed}".ljust(42)


def _goodput(tried: Tried[Candidate]) -> str:
    margin = f" ± {tried.margin:.2f}" if math.isfinite(tried.margin) else ""
    return f"{tried.goodput:.2f}{margin}"
