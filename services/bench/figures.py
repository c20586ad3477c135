"""What a point comes to: latencies, throughput, goodput, fairness, errors; times in seconds.

Terms as in the literature: TTFT, from when a request should have been sent to its first event with text;
TPOT, mean time of each token after it; ITL, time between two events; E2E, to the end of a whole answer;
goodput, requests a second within all limits (DistServe, OSDI'24); Jain's index, (Σx)² / (n·Σx²) over tokens
by weight.

A request counts where it was due in the point's window. What this client cancelled or read slowly, on
purpose, says nothing of the server's speed: it is counted, and left out of latencies, attainment and goodput.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from headway.services.bench.answer import Answer, Outcome
from headway.services.bench.load import Loaded
from headway.services.bench.settings import Slos
from headway.services.percentile import percentile
from headway.services.simulated_tenants import CLASS_NAMES
from headway.services.simulation_report import jain_index

AT_THE_DOOR: Final = frozenset({429, 503})
"""Statuses of a request that was not taken in: told at once, or so it should be."""
BEHIND_IT: Final = frozenset({504})
"""Of one that was taken in, and given up before its first token: its deadline was out of reach, or past."""
PERCENTS: Final = (50, 95, 99)
CURVE_POINTS: Final = 100
"""Quantiles that are kept of each distribution, for pictures."""


def point_figures(loaded: Loaded, slos: Slos, weights: Mapping[str, float]) -> dict[str, Any]:
    """All figures of one point; None where nothing was there to measure."""
    start, end = loaded.start, loaded.end
    span = end - start
    due = [answer for answer in loaded.answers if start <= answer.planned.seconds < end]
    judged = judged_of(due)
    gaps = sorted(gaps_of(judged))
    tokens = sum(answer.tokens_between(start, end) for answer in loaded.answers)
    ended = [answer for answer in loaded.answers if answer.outcome is Outcome.FINISHED]
    in_window = sum(start <= (answer.ended or 0.0) < end for answer in ended)
    outcomes = Counter(answer.outcome for answer in due)
    received = dict.fromkeys(sorted({answer.planned.demand.tenant for answer in loaded.answers}), 0.0)
    for answer in loaded.answers:
        received[answer.planned.demand.tenant] += answer.tokens_between(start, end)
    return {
        "window_seconds": _rounded(span, 3),
        "requests": len(due),
        **{outcome.value: outcomes[outcome] for outcome in Outcome},
        "slow_readers": sum(answer.planned.is_slow for answer in due),
        "offered_per_second": _per_second(len(due), span),
        "requests_per_second": _per_second(in_window, span),
        "tokens_per_second": _per_second(tokens, span),
        **group(judged, slos, span),
        "itl_seconds": summary(gaps),
        "tokens_per_event": _tokens_per_event(judged),
        **{name: summary(times) for name, times in refusal_times(due).items()},
        "errors": errors_of(due),
        "prompts": prompt_lengths(due),
        "cached_prompt_tokens": sum(answer.told_cached_tokens or 0 for answer in due),
        "jain_index": jain_index(received, weights) if len(received) > 1 else None,
        "tenants": tenants_of(judged, slos, span, received=received, weights=weights),
        "classes": classes_of(judged, slos, span),
        "curves": {
            "ttft_seconds": curve(_known(answer.ttft_seconds for answer in judged)),
            "tpot_seconds": curve(_known(answer.tpot_seconds for answer in judged)),
            "itl_seconds": curve(gaps),
            "e2e_seconds": curve(_known(answer.e2e_seconds for answer in judged)),
        },
    }


def judged_of(answers: Iterable[Answer]) -> list[Answer]:
    """Those that say something of the server."""
    return [
        answer
        for answer in answers
        if answer.outcome is not Outcome.CANCELLED
        and answer.planned.cancel_after is None
        and not answer.planned.is_slow
    ]


def refusal_times(answers: Iterable[Answer]) -> dict[str, list[float]]:
    """From when refused requests should have been sent to their answer: at the door, and behind it."""
    refused = [answer for answer in answers if answer.outcome is Outcome.REFUSED and answer.ended is not None]
    return {
        name: [(answer.ended or 0.0) - answer.planned.seconds for answer in refused if answer.status in kind]
        for name, kind in (("refusal_seconds", AT_THE_DOOR), ("given_up_seconds", BEHIND_IT))
    }


def is_good(answer: Answer, slos: Slos) -> bool:
    """Whether it was answered in whole and within every limit."""
    return answer.outcome is Outcome.FINISHED and all(
        limit is None or value is None or value <= limit
        for value, limit in (
            (answer.ttft_seconds, slos.ttft_seconds),
            (answer.tpot_seconds, slos.tpot_seconds),
            (answer.e2e_seconds, slos.e2e_seconds),
        )
    )


def group(answers: Sequence[Answer], slos: Slos, span: float) -> dict[str, Any]:
    """The figures of a set of requests."""
    good = sum(is_good(answer, slos) for answer in answers)
    one_limit = {
        "ttft": Slos(slos.ttft_seconds, None, None),
        "tpot": Slos(None, slos.tpot_seconds, None),
        "e2e": Slos(None, None, slos.e2e_seconds),
    }
    return {
        "ttft_seconds": summary(_known(answer.ttft_seconds for answer in answers)),
        "tpot_seconds": summary(_known(answer.tpot_seconds for answer in answers)),
        "e2e_seconds": summary(_known(answer.e2e_seconds for answer in answers)),
        "attainment": _share(good, len(answers)),
        **{
            f"{name}_attainment": _share(sum(is_good(answer, limit) for answer in answers), len(answers))
            for name, limit in one_limit.items()
        },
        "goodput_per_second": _per_second(good, span),
    }


def gaps_of(answers: Iterable[Answer]) -> Iterable[float]:
    """Times between two events with text of one answer."""
    for answer in answers:
        for earlier, later in pairwise(answer.times):
            yield later - earlier


def errors_of(answers: Iterable[Answer]) -> list[dict[str, Any]]:
    """What went wrong how often, by status and outcome, with the first example of each."""
    found: dict[tuple[int, str], dict[str, Any]] = {}
    for answer in answers:
        if answer.outcome in {Outcome.FINISHED, Outcome.CANCELLED} or answer.outcome is None:
            continue
        key = (answer.status, answer.outcome.value)
        entry = found.setdefault(
            key,
            {"status": answer.status, "outcome": answer.outcome.value, "count": 0, "example": answer.error},
        )
        entry["count"] += 1
    return sorted(found.values(), key=lambda entry: -int(entry["count"]))


def prompt_lengths(answers: Iterable[Answer]) -> dict[str, Any]:
    """How far the prompts were as long as they should be, by what the server counted."""
    off = [
        answer.told_prompt_tokens - answer.planned.demand.prompt_tokens
        for answer in answers
        if answer.told_prompt_tokens is not None
    ]
    return {
        "counted": len(off),
        "exact_share": _share(sum(difference == 0 for difference in off), len(off)),
        "worst_tokens_off": max(off, key=abs) if off else None,
    }


def summary(values: Sequence[float]) -> dict[str, float | None]:
    """Mean, nearest-rank percentiles and the largest."""
    ordered = sorted(values)
    if not ordered:
        return dict.fromkeys(["mean", *(f"p{percent}" for percent in PERCENTS), "max"])
    told = {"mean": sum(ordered) / len(ordered)}
    told |= {f"p{percent}": percentile(ordered, percent) for percent in PERCENTS}
    told["max"] = ordered[-1]
    return {name: _rounded(value) for name, value in told.items()}


def curve(values: Sequence[float]) -> list[float]:
    """Quantiles from the smallest to the largest, evenly spaced; all values where they are few."""
    ordered = sorted(values)
    if len(ordered) <= CURVE_POINTS:
        return [_rounded(value) for value in ordered]
    last = len(ordered) - 1
    return [_rounded(ordered[round(place * last / CURVE_POINTS)]) for place in range(CURVE_POINTS + 1)]


def _tokens_per_event(answers: Iterable[Answer]) -> float | None:
    finished = [answer for answer in answers if answer.outcome is Outcome.FINISHED and answer.times]
    events = sum(len(answer.times) for answer in finished)
    return _rounded(sum(answer.tokens for answer in finished) / events, 3) if events else None


def tenants_of(
    judged: Sequence[Answer],
    slos: Slos,
    span: float,
    *,
    received: Mapping[str, float],
    weights: Mapping[str, float],
) -> list[dict[str, Any]]:
    """The figures of each tenant; ``received``: the tokens that each got."""
    whole = sum(received.values())
    return [
        {
            "tenant": name,
            "weight": weights.get(name, 1.0),
            "requests": sum(answer.planned.demand.tenant == name for answer in judged),
            "tokens_per_second": _per_second(tokens, span),
            "tokens_share": _share(tokens, whole),
            **group([answer for answer in judged if answer.planned.demand.tenant == name], slos, span),
        }
        for name, tokens in received.items()
    ]


def classes_of(judged: Sequence[Answer], slos: Slos, span: float) -> list[dict[str, Any]]:
    """The figures of each class that was asked for."""
    groups = [
        (name, [answer for answer in judged if answer.planned.demand.priority == place])
        for place, name in enumerate(CLASS_NAMES)
    ]
    return [
        {"class": name, "requests": len(mine), **group(mine, slos, span)} for name, mine in groups if mine
    ]


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _per_second(amount: float, span: float) -> float | None:
    return _rounded(amount / span, 4) if span > 0 else None


def _share(part: float, whole: float) -> float | None:
    return _rounded(part / whole, 4) if whole else None


def _rounded(value: float, digits: int = 6) -> float:
    return round(value, digits)
