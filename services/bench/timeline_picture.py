"""Who ran when: one line per request, with what it did, over strips of how many waited and ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

WIDTH: Final = 960
LEFT: Final = 92
RIGHT: Final = 8
ROW: Final = 5
"""Height of a request; twice that where there are few."""
_FEW: Final = 60
MOST_ROWS: Final = 160
"""More cannot be told apart; then every second, third … request is drawn."""
STRIP: Final = 46
_STRIP_GAP: Final = 12
_AXIS: Final = 26
_MOST_STRIP_POINTS: Final = 600
_KINDS: Final = {
    "waiting": "wait",
    "prefill": "prefill",
    "decode": "decode",
    "swapped out": "away",
    "preempted": "away",
    "resuming": "prefill",
}
_BEGINNING: Final = "waiting"
"""The phase of every request that comes to a worker."""
_ACCEPTED: Final = 200
_BAD: Final = frozenset({"refused", "failed", "broken", "unfinished", "unsent"})


@dataclass(frozen=True, slots=True)
class Request:
    """One row, in seconds since the point began."""

    tenant: str
    due: float
    first: float | None
    last: float | None
    ended: float | None
    outcome: str
    told: str
    phases: Sequence[tuple[str, float, float]]
    """By the server's records; none: from the client's own times."""
    is_unclear: bool
    """The server recorded others, and of this one not, or no longer, how it began."""


def requests_of(point: Mapping[str, Any], fields: Sequence[str]) -> list[Request]:
    """The requests of a point, by tenant and then by when they were due."""
    phases: dict[str, list[list[Any]]] = {}
    for worker in point["workers"]:
        phases |= worker["phases"]
    found = [_request(dict(zip(fields, row, strict=True)), phases) for row in point["requests_sent"]]
    return sorted(found, key=lambda request: (request.tenant, request.due))


def _request(row: Mapping[str, Any], phases: Mapping[str, Sequence[Sequence[Any]]]) -> Request:
    own = sorted(((phase, start, end) for phase, start, end in phases.get(row["job"], ())), key=_start)
    is_accepted = row["status"] == _ACCEPTED  # of another one the server's records know nothing
    told = (
        f"{row['tenant']} #{row['number']}: {row['outcome']}, {row['prompt_tokens']} + {row['tokens']} tokens"
    )
    if row["first"] is not None:
        told += f", TTFT {row['first'] - row['due']:.3f} s"
    return Request(
        row["tenant"],
        row["due"],
        row["first"],
        row["last"],
        row["ended"],
        row["outcome"] or "",
        told,
        own,
        bool(phases) and is_accepted and not (own and own[0][0] == _BEGINNING),
    )


def _start(phase: tuple[str, float, float]) -> float:
    return phase[1]


def strip_tops(point: Mapping[str, Any], fields: Sequence[str]) -> dict[str, float]:
    """The largest value of each strip, by its label."""
    strips = [*_open_strips(requests_of(point, fields), end_of(point, fields)), *_step_strips(point)]
    return {strip.label: strip.top for strip in strips}


def timeline(
    point: Mapping[str, Any],
    fields: Sequence[str],
    until: float | None = None,
    tops: Mapping[str, float] | None = None,
) -> str:
    """The drawing with its legend; ``until`` and ``tops`` end its axes, so that several have the same."""
    requests = requests_of(point, fields)
    if not requests:
        return ""
    end = until or end_of(point, fields)
    every = -(-len(requests) // MOST_ROWS)
    rows = requests[::every]
    strips = [*_open_strips(requests, end), *_step_strips(point)]
    top = len(strips) * (STRIP + _STRIP_GAP)
    row = ROW if len(rows) > _FEW else 2 * ROW
    height = top + row * len(rows) + _AXIS
    draw = _Drawing(end, row)
    parts = [
        f'<svg class="timeline" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="who ran when" '
        f'style="min-width:640px">'
    ]
    window = point["window"]
    parts.append(
        f'<rect class="window" x="{draw.x(window[0]):.1f}" y="0" '
        f'width="{draw.x(window[1]) - draw.x(window[0]):.1f}" height="{height - _AXIS}"/>'
    )
    parts += draw.axis(height - _AXIS)
    for place, strip in enumerate(strips):
        parts += draw.strip(strip, place * (STRIP + _STRIP_GAP), (tops or {}).get(strip.label, strip.top))
    parts += draw.rows(rows, top)
    return f'{_legend(point, rows, every)}<div class="wide">{"".join(parts)}</svg></div>'


def _legend(point: Mapping[str, Any], rows: Sequence[Request], every: int) -> str:
    """What the colours are, and what is not drawn."""
    known, unclear = any(request.phases for request in rows), any(request.is_unclear for request in rows)
    waiting = "waiting" if known else "waiting and prefill (the server's own records would tell them apart)"
    keys = [("wait", waiting), *([("prefill", "prefill")] if known else []), ("decode", "decode")]
    keys += [("unclear", "waiting or prefill: not recorded, or no longer")] if unclear else []
    keys += (
        [("away", "preempted")]
        if any(p[0] in ("swapped out", "preempted") for r in rows for p in r.phases)
        else []
    )
    keys += [("bad", "not finished")] if any(request.outcome in _BAD for request in rows) else []
    legend = "".join(f'<span class="key box {kind}">{escape(word)}</span>' for kind, word in keys)
    sampled = f" Every {every}th request is drawn." if every > 1 else ""
    words = f"One line per request; the measured window is shaded.{sampled}{_lost_words(point)}"
    return f'<div class="legend">{legend}<i>{words}</i></div>'


def end_of(point: Mapping[str, Any], fields: Sequence[str]) -> float:
    """When the last request of a point ended."""
    place = fields.index("ended")
    ended = [float(row[place]) for row in point["requests_sent"] if row[place] is not None]
    return max([float(point["window"][1]), *ended])


@dataclass(frozen=True, slots=True)
class _Strip:
    label: str
    points: Sequence[tuple[float, float]]
    colour: str
    is_stepped: bool = True

    @property
    def top(self) -> float:
        """Its largest value; 1 where there is none above 0."""
        return max((value for _, value in self.points), default=0.0) or 1.0


def _open_strips(requests: Sequence[Request], end: float) -> list[_Strip]:
    """How many waited for their first token, and how many had one, over time."""
    waits: list[tuple[float, int]] = []
    runs: list[tuple[float, int]] = []
    for request in requests:
        done = end if request.ended is None else request.ended
        first = done if request.first is None else request.first
        waits += [(request.due, 1), (first, -1)]
        if request.first is not None:
            runs += [(first, 1), (done, -1)]
    return [
        _Strip("waiting", _sums(waits), "wait"),
        _Strip("answering", _sums(runs), "decode"),
    ]


def _sums(changes: list[tuple[float, int]]) -> list[tuple[float, float]]:
    total, points = 0, [(0.0, 0.0)]
    for at, change in sorted(changes):
        total += change
        points.append((at, float(total)))
    return points


def _step_strips(point: Mapping[str, Any]) -> list[_Strip]:
    """What each step computed and took, of the first worker."""
    for worker in point["workers"]:
        steps = worker["steps"]
        if steps:
            tokens = [(step[0], float(step[3])) for step in steps]
            took = [(step[0], 1e3 * step[1]) for step in steps]
            return [_Strip("tokens/step", tokens, "prefill", False), _Strip("ms/step", took, "line", False)]
    return []


def _lost_words(point: Mapping[str, Any]) -> str:
    """From when on steps are drawn, where not all are known."""
    since = max((worker.get("from_seconds") or 0.0 for worker in point["workers"]), default=0.0)
    return f" Steps are known from {since:.1f} s on: a worker keeps its last ones only." if since else ""


class _Drawing:
    """Draws over one time axis."""

    def __init__(self, end: float, row: int) -> None:
        self._end = max(end, 1e-6)
        self._row = row

    def x(self, seconds: float) -> float:
        """A moment's place."""
        return LEFT + min(1.0, max(0.0, seconds / self._end)) * (WIDTH - LEFT - RIGHT)

    def strip(self, strip: _Strip, top: float, most: float) -> Iterator[str]:
        """A small chart of values up to ``most``."""
        yield _word(LEFT - 6, top + 12, strip.label)
        yield _word(LEFT - 6, top + 26, f"≤ {most:,.0f}" if most >= 1000 else f"≤ {most:.3g}")
        yield f'<path class="grid" d="M{LEFT} {top + STRIP}H{WIDTH - RIGHT}"/>'
        path = ""
        for at, value in _thinned(strip.points):
            x, y = self.x(at), top + STRIP - value / most * (STRIP - 4)
            if strip.is_stepped:
                path += f"M{x:.1f} {y:.1f}" if not path else f"H{x:.1f}V{y:.1f}"
            else:
                path += f"M{x:.1f} {top + STRIP}V{y:.1f}"
        if strip.is_stepped and path:
            path += f"H{self.x(self._end):.1f}"
        yield f'<path class="strip {strip.colour}" d="{path}"/>'

    def rows(self, rows: Sequence[Request], top: float) -> Iterator[str]:
        """One line per request; tenants are named at their first."""
        named = ""
        many = len({request.tenant for request in rows}) > 1
        for place, request in enumerate(rows):
            y = top + place * self._row
            if many and request.tenant != named:
                named = request.tenant
                yield _word(LEFT - 6, y + 8, named[:14])
                yield f'<path class="grid" d="M{LEFT} {y - 0.5}H{WIDTH - RIGHT}"/>'
            yield f"<g><title>{escape(request.told)}</title>"
            for kind, start, end in _bars(request, self._end):
                yield self._bar(kind, self.x(start), y, max(0.8, self.x(end) - self.x(start)))
            if request.outcome in _BAD and request.ended is not None:
                yield self._bar("bad", self.x(request.ended) - 1.5, y, 3.0)
            yield "</g>"

    def _bar(self, kind: str, x: float, y: float, width: float) -> str:
        return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{self._row - 1}"/>'

    def axis(self, y: float) -> Iterator[str]:
        """Seconds."""
        step = next(
            step
            for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1e9)
            if self._end / step <= 12
        )
        for place in range(int(self._end / step) + 1):
            at = place * step
            yield f'<path class="grid" d="M{self.x(at):.1f} 0V{y}"/>'
            yield _word(self.x(at), y + 16, f"{at:g} s", anchor="middle")


def _word(x: float, y: float, text: str, *, anchor: str = "end") -> str:
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _bars(request: Request, until: float) -> Iterator[tuple[str, float, float]]:
    """What it did, in order."""
    ended = until if request.ended is None else request.ended
    begun = "unclear" if request.is_unclear else "wait"
    if request.phases:
        yield begun, request.due, request.phases[0][1]
        for phase, start, end in request.phases:
            yield _KINDS.get(phase, "wait"), start, end
        return
    yield begun, request.due, ended if request.first is None else request.first
    if request.first is not None:
        yield "decode", request.first, ended if request.outcome in _BAD else request.last or ended


def _thinned(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """The largest of each few, where there are more than can be seen."""
    each = -(-len(points) // _MOST_STRIP_POINTS)
    for start in range(0, len(points), max(1, each)):
        yield max(points[start : start + max(1, each)], key=lambda point: point[1])
