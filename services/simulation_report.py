"""What a simulated run comes to: latencies, goodput, fairness, preemptions, as one JSON object or a table.

Terms as in the literature: TTFT, time to the first token; ITL, gap between two tokens; TPOT, a request's mean
gap; goodput, requests a second that meet both limits; Jain's index, (Σx)² / (n·Σx²) over weighted service.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headway.engine.values import FinishReason
from headway.services.percentile import percentile
from headway.services.simulation_run import GAP_SECONDS, Journey, SimulationRun

_PERCENTS = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request has to meet to count as good, in seconds."""

    ttft_seconds: float = 1.0
    tpot_seconds: float = 0.05


def report(run: SimulationRun, limits: Limits, weights: Mapping[str, float]) -> dict[str, Any]:
    """All figures of one run; times in seconds, None where nothing was there to measure."""
    span = run.end_seconds - min((journey.arrival_seconds for journey in run.journeys), default=0.0)
    figures = _group(run.journeys, limits, span)
    figures["itl_seconds"] = _summary_of_gaps(run.gaps)
    figures |= {
        "span_seconds": _rounded(span),
        "steps": run.steps,
        "busy_share": _rounded(run.busy_seconds / span) if span else None,
        "computed_tokens": run.computed_tokens,
        "preemptions": int(run.extra["preemptions_swap"] + run.extra["preemptions_recompute"]),
        "jain_index": None,
        "jain_index_backlogged": None,
        "backlogged_seconds": _rounded(run.backlogged_seconds),
        "kv_share_max": _rounded(max((point.kv_share for point in run.load), default=0.0)),
        "scheduler": {name: _rounded(value) for name, value in sorted(run.extra.items())},
        "tenants": [],
    }
    if len(run.service) > 1:
        figures["jain_index"] = jain_index(run.service, weights)
        figures["jain_index_backlogged"] = jain_index(run.backlogged_service, weights)
        figures["tenants"] = [_tenant(name, run, limits, weights, span) for name in run.service]
    return figures


def jain_index(service: Mapping[str, float], weights: Mapping[str, float]) -> float | None:
    """1: everyone got service in proportion to its weight; 1/n: one got all. None without any service."""
    shares = [service[name] / weights.get(name, 1.0) for name in service]
    squares = sum(share * share for share in shares)
    return _rounded(sum(shares) ** 2 / (len(shares) * squares), 4) if squares else None


def ttft_seconds(journey: Journey) -> float | None:
    """Arrival to first token."""
    first = journey.first_token_seconds
    return None if first is None else first - journey.arrival_seconds


def tpot_seconds(journey: Journey) -> float | None:
    """Mean gap between its tokens; None below two tokens."""
    if journey.first_token_seconds is None or journey.tokens < 2:
        return None
    return (journey.last_token_seconds - journey.first_token_seconds) / (journey.tokens - 1)


def _group(journeys: Sequence[Journey], limits: Limits, span: float) -> dict[str, Any]:
    """The figures of a set of requests."""
    ended = [journey for journey in journeys if journey.finish_reason is not None]
    finished = [
        journey for journey in ended if journey.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
    ]
    meets_ttft = [journey for journey in finished if (ttft_seconds(journey) or 0.0) <= limits.ttft_seconds]
    meets_tpot = [journey for journey in finished if (tpot_seconds(journey) or 0.0) <= limits.tpot_seconds]
    good = [journey for journey in meets_ttft if (tpot_seconds(journey) or 0.0) <= limits.tpot_seconds]
    in_time = [journey for journey in finished if journey.lag_seconds <= limits.ttft_seconds]
    count = len(journeys)
    tokens = sum(journey.tokens for journey in journeys)
    return {
        "requests": count,
        "finished": len(finished),
        "refused": sum(journey.is_refused for journey in journeys),
        "past_deadline": sum(journey.finish_reason is FinishReason.DEADLINE for journey in ended),
        "ttft_seconds": _summary(ttft_seconds(journey) for journey in journeys),
        "tpot_seconds": _summary(tpot_seconds(journey) for journey in journeys),
        "end_to_end_seconds": _summary(_whole_seconds(journey) for journey in finished),
        "ttft_attainment": _share(len(meets_ttft), count),
        "tpot_attainment": _share(len(meets_tpot), count),
        "token_deadline_attainment": _share(len(in_time), count),
        "goodput_share": _share(len(good), count),
        "goodput_per_second": _rounded(len(good) / span) if span else None,
        "requests_per_second": _rounded(len(finished) / span) if span else None,
        "tokens_per_second": _rounded(tokens / span, 1) if span else None,
    }


def _tenant(
    name: str, run: SimulationRun, limits: Limits, weights: Mapping[str, float], span: float
) -> dict[str, Any]:
    journeys = [journey for journey in run.journeys if journey.demand.tenant == name]
    return {
        "tenant": name,
        "weight": weights.get(name, 1.0),
        "service_seconds": _rounded(run.service[name], 3),
        "backlogged_service_seconds": _rounded(run.backlogged_service[name], 3),
        **_group(journeys, limits, span),
    }


def _summary(values: Iterable[float | None]) -> dict[str, float | None]:
    ordered = sorted(value for value in values if value is not None)
    if not ordered:
        return dict.fromkeys(["mean", *(f"p{percent}" for percent in _PERCENTS), "max"])
    summary = {"mean": sum(ordered) / len(ordered)}
    summary |= {f"p{percent}": percentile(ordered, percent) for percent in _PERCENTS}
    summary["max"] = ordered[-1]
    return {name: _rounded(value) for name, value in summary.items()}


def _summary_of_gaps(gaps: Counter[int]) -> dict[str, float | None]:
    """The same of a histogram, without writing it out."""
    count = sum(gaps.values())
    if not count:
        return _summary(())
    summary: dict[str, float | None] = {
        "mean": _rounded(GAP_SECONDS * sum(gap * times for gap, times in gaps.items()) / count)
    }
    open_percents = list(_PERCENTS)
    seen = 0
    for gap in sorted(gaps):
        seen += gaps[gap]
        while open_percents and seen * 100 >= open_percents[0] * count:
            summary[f"p{open_percents.pop(0)}"] = _rounded(GAP_SECONDS * gap)
    summary["max"] = _rounded(GAP_SECONDS * max(gaps))
    return summary


def _whole_seconds(journey: Journey) -> float | None:
    return None if journey.finish_seconds is None else journey.finish_seconds - journey.arrival_seconds


def _share(part: int, whole: int) -> float | None:
    return _rounded(part / whole, 4) if whole else None


def _rounded(value: float, digits: int = 6) -> float:
    return round(value, digits)
