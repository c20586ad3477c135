"""A benchmark's result as JSON has it: each point's figures and requests, what was sent, to whom."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final

from headway.services.bench.answer import Answer, Outcome, Planned
from headway.services.bench.client_watch import complaints
from headway.services.bench.figures import point_figures, summary
from headway.services.bench.load import Loaded
from headway.services.bench.plan import Work
from headway.services.bench.prompts import PromptWriter
from headway.services.bench.settings import BenchSettings
from headway.services.bench.target import Facts
from headway.services.traffic import Demand

FORMAT: Final = 2
"""Of the result; grows when something in it changes its meaning."""
ROW_FIELDS: Final = (
    "number",
    "tenant",
    "class",
    "prompt_tokens",
    "due",
    "sent",
    "first",
    "last",
    "ended",
    "tokens",
    "outcome",
    "status",
    "job",
)
"""Of each request in a point's ``requests_sent``; times in seconds since the point began."""


def point_result(
    loaded: Loaded,
    settings: BenchSettings,
    weights: Mapping[str, float],
    records: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """One point; ``records``: of Headway's workers."""
    return {
        "rate": loaded.point.rate,
        "concurrency": loaded.point.concurrency,
        "window": [loaded.start, round(loaded.end, 3)],
        "interrupted": loaded.is_interrupted,
        **point_figures(loaded, settings.slos, weights),
        "client": client_result(loaded, settings),
        "requests_sent": [request_row(answer) for answer in loaded.answers],
        "workers": list(records),
    }


def client_result(loaded: Loaded, settings: BenchSettings) -> dict[str, Any]:
    """Whether the client kept up: of several processes the worst of each figure, and each by itself."""
    parts = loaded.parts or (loaded,)
    each = [_one_client(part, settings) for part in parts]
    if len(each) == 1:
        return each[0]
    lags = [client["loop_lag_seconds"] for client in each]
    late = [answer.late_seconds for answer in loaded.answers if answer.sent is not None]
    return {
        "cpu_share": max(client["cpu_share"] for client in each),
        "loop_lag_seconds": {name: max(lag[name] for lag in lags) for name in lags[0]},
        "late_seconds": summary(late),
        "complaints": [
            f"client process {number}: {complaint}"
            for number, client in enumerate(each, start=1)
            for complaint in client["complaints"]
        ],
        "processes": each,
    }


def _one_client(part: Loaded, settings: BenchSettings) -> dict[str, Any]:
    client = part.client
    if client is None:
        raise ValueError("a point that was not watched")
    late = [answer.late_seconds for answer in part.answers if answer.sent is not None]
    found = complaints(
        late,
        client,
        max_lateness=settings.max_lateness,
        max_cpu=settings.max_client_cpu,
        unsent=[answer.error for answer in part.answers if answer.outcome is Outcome.UNSENT],
    )
    return {**client.shown(), "late_seconds": summary(late), "complaints": found}


def target_result(facts: Facts) -> dict[str, Any]:
    """Whom the load was put on."""
    return {
        "model": facts.model,
        "context_tokens": facts.context_tokens,
        "server": facts.server,
        "told": facts.shown,
    }


def work_result(work: Work, writer: PromptWriter) -> dict[str, Any]:
    """What was sent."""
    settings = work.settings
    process: str = settings.arrivals or ("trace" if work.trace else "poisson")
    if settings.concurrencies:
        process = "closed loop"
    if work.trace:
        lengths = f"lengths of {settings.trace}, scaled by {work.length_scale:.3g}"
    elif settings.length_spread:
        lengths = (
            f"prompts around {settings.prompt_tokens} and answers around {settings.answer_tokens} tokens"
        )
    else:
        lengths = f"prompts of {settings.prompt_tokens} and answers of {settings.answer_tokens} tokens"
    return {
        "summary": f"{process}, {lengths}",
        "process": process,
        "length_scale": work.length_scale,
        "context_tokens": work.context_tokens,
        "cut_rows": work.cut_rows,
        "trace_rows": len(work.trace),
        "tokens_per_word": round(writer.unit.tokens_each, 4),
        "fixed_tokens": round(writer.unit.fixed_tokens, 2),
        "prompts_are_exact": writer.is_exact,
        "tenants": [tenant.name for tenant in work.tenants],
    }


def request_row(answer: Answer) -> list[Any]:
    """One request as ROW_FIELDS has it."""
    demand = answer.planned.demand
    return [
        answer.planned.number,
        demand.tenant,
        demand.priority,
        answer.told_prompt_tokens or demand.prompt_tokens,
        _time(answer.planned.seconds),
        _time(answer.sent),
        _time(answer.times[0] if answer.times else None),
        _time(answer.times[-1] if answer.times else None),
        _time(answer.ended),
        answer.tokens,
        answer.outcome.value if answer.outcome else None,
        answer.status,
        answer.job_id,
    ]


def read_row(row: Sequence[Any], fields: Sequence[str]) -> Answer:
    """A request as it was, of ``request_row``: what its figures are judged by. Events between its first and
    its last one are not kept, nor which reader was slow.
    """
    told = dict(zip(fields, row, strict=True))
    demand = Demand(told["due"], told["tenant"], told["class"], told["prompt_tokens"], told["tokens"])
    answer = Answer(Planned(told["number"], told["due"], demand), told["sent"])
    if told["first"] is not None:
        answer.times = array("d", (told["first"], told["last"]))
    answer.told_answer_tokens = told["tokens"]
    answer.status, answer.job_id = told["status"], told["job"]
    answer.ended = told["ended"]
    answer.outcome = None if told["outcome"] is None else Outcome(told["outcome"])
    return answer


def _time(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 5)
