"""What ``headway tune`` found, as one JSON object or as text to act on."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any, Final

from headway.services.simulation_report import Limits
from headway.services.tune import Confirmed, Tuned
from headway.services.tune_search import Tried
from headway.services.tune_space import Candidate, as_arguments, as_environment

FAR_OFF: Final = 0.2
"""Of the predicted goodput, by which the measured one may differ before it has to be said."""
_NAME_WIDTH: Final = 44
ALL: Final = 0.99
"""Share of the requests that are as good as all."""
FEW: Final = 0.5
"""Share of the requests below which a load is beyond every setting: what is found only loses least."""


def as_json(tuned: Tuned, limits: Limits, device: str) -> dict[str, Any]:
    """All figures as values of JSON."""
    return {
        "device": device,
        "limits": {"ttft_seconds": limits.ttft_seconds, "tpot_seconds": limits.tpot_seconds},
        "offered_per_second": round(tuned.offered, 4),
        "settings_tried": tuned.tried,
        "best": _tried(tuned.best),
        "options": tuned.best.candidate.options(limits),
        "expected": _expected(tuned),
        "length_scale": round(tuned.length_scale, 6),
        "usual": _tried(tuned.usual),
        "finalists": [_tried(one) for one in tuned.finalists],
        "confirmed": [
            {
                "settings": asdict(one.candidate),
                "seconds": one.seconds,
                "predicted": one.predicted,
                "measured": one.measured,
            }
            for one in tuned.confirmed
        ],
    }


def as_lines(tuned: Tuned, limits: Limits, device: str) -> list[str]:
    """The same for people: what to set first, and what to expect of it."""
    options = tuned.best.candidate.options(limits)
    lines = [
        f"{device}: {tuned.tried} settings tried at {tuned.offered:.2f} requests/s, "
        f"TTFT within {limits.ttft_seconds:g} s and TPOT within {1e3 * limits.tpot_seconds:g} ms"
        + ("" if tuned.length_scale == 1.0 else f", lengths times {tuned.length_scale:.3g}"),
        "",
        f"{'':{_NAME_WIDTH}}{'goodput, requests/s':>24}{'TTFT, P99':>12}",
    ]
    lines += [_line(one, tuned) for one in tuned.finalists]
    if tuned.confirmed:
        lines += [
            "",
            f"{'on the real engine:':{_NAME_WIDTH}}{'predicted':>12}{'measured':>12}{'TTFT, P99':>12}",
        ]
        lines += [_confirmed(one) for one in tuned.confirmed]
    lines += ["", *_expectation(tuned), ""]
    lines += [f"    headway worker {as_arguments(options)}", f"    {as_environment(options)} headway up"]
    if _serves_all(tuned):
        lines += [
            "",
            "All of this load is served in time: --rate-scale or --rate shows how much more would be.",
        ]
    if tuned.best.goodput < FEW * tuned.offered:
        lines += [
            "",
            "No setting serves even half of this load in time: the choice among them says little. Take a "
            "lower --rate or --rate-scale, shorter lengths or wider limits, or another machine.",
        ]
    return lines


def is_far_off(one: Confirmed) -> bool:
    """Whether the real engine did something else than was predicted of the same requests."""
    return abs(one.goodput - one.predicted_goodput) > FAR_OFF * one.predicted_goodput


def _expected(tuned: Tuned) -> dict[str, Any]:
    """Goodput of what is to be set: measured where it was, else simulated."""
    proof = tuned.proof
    if proof is None:
        return {"goodput_per_second": round(tuned.best.goodput, 4), "by": "simulation"}
    return {
        "goodput_per_second": proof.goodput,
        "by": "measurement",
        "predicted_per_second": proof.predicted_goodput,
        "is_far_off": is_far_off(proof),
    }


def _expectation(tuned: Tuned) -> list[str]:
    """The same in words, and a warning where the two do not agree."""
    proof = tuned.proof
    if proof is None:
        return [f"Set, and expect {_goodput(tuned.best)} requests/s within the limits, by simulation alone:"]
    told = (
        f"Set, and expect {proof.goodput:.2f} requests/s within the limits, as measured in "
        f"{proof.seconds:g} s in which {proof.measured['requests'] / proof.seconds:.2f} came "
        f"(predicted of the same requests: {proof.predicted_goodput:.2f}):"
    )
    if not is_far_off(proof):
        return [told]
    return [
        f"WARNING: the real engine served {_share(proof)} within the limits than predicted. The choice among "
        "settings is by that prediction: calibrate again with nothing else running, or confirm for longer.",
        "",
        told,
    ]


def _serves_all(tuned: Tuned) -> bool:
    """Whether more load would be needed to tell settings apart: by simulation, and for real where it ran."""
    is_simulated = tuned.best.goodput >= ALL * tuned.offered
    return is_simulated and (tuned.proof is None or tuned.proof.measured["goodput_share"] >= ALL)


def _share(one: Confirmed) -> str:
    if not one.predicted_goodput:
        return "more"
    difference = one.goodput / one.predicted_goodput - 1
    return f"{abs(difference):.0%} {'more' if difference > 0 else 'less'}"


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
    figures = f"{one.predicted_goodput:12.2f}{one.goodput:12.2f}{one.measured['ttft_p99']:10.2f} s"
    return f"{_name(one.candidate)}{figures}"


def _name(candidate: Candidate) -> str:
    timed = ", timed" if candidate.is_timed else ""
    name = (
        f"{candidate.max_batch_tokens} tokens, {candidate.max_sequences} seq., blocks {candidate.block_size}"
    )
    return f"{name}{timed}".ljust(_NAME_WIDTH)


def _goodput(tried: Tried[Candidate]) -> str:
    margin = f" ± {tried.margin:.2f}" if math.isfinite(tried.margin) else ""
    return f"{tried.goodput:.2f}{margin}"
