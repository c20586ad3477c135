"""An operator can read why answers pause, and how dear it was."""

from __future__ import annotations

import math
from collections import deque

from structlog.testing import capture_logs

from headway.engine.detours import Comeback, Departure
from headway.engine.preemption import Mode
from headway.engine.values import RequestKey
from headway.services.logs import get_logger
from headway.services.preemption_log import LINES_AT_ONCE, PreemptionLog


def departure(mode: Mode = Mode.SWAP) -> Departure:
    return Departure(
        RequestKey("job-1/0", 2),
        "acme",
        2,
        77,
        mode,
        lost_tokens=0 if mode is Mode.SWAP else 500,
        moved_bytes=4096 if mode is Mode.SWAP else 0,
        swap_seconds=0.25 if mode is Mode.SWAP else math.inf,
        recompute_seconds=0.75,
        kv_blocks_total=100,
        kv_blocks_before=98,
        kv_blocks_after=61,
    )


def comeback() -> Comeback:
    return Comeback(RequestKey("job-1/0", 2), "acme", 2, 90, Mode.SWAP, 0.25, 0.3)


def written(*events: Departure | Comeback) -> list[dict[str, object]]:
    happened = deque(events)
    with capture_logs() as lines:
        PreemptionLog(happened, get_logger("worker")).write()
    assert not happened
    return [dict(line) for line in lines]


def test_case_40_a_line_says_who_gave_way_how_and_what_that_should_and_did_cost() -> None:
    gone, back = written(departure(), comeback())
    about = {"request": "job-1/0", "tenant": "acme", "priority": 2, "mode": "swap", "log_level": "info"}
    assert gone == about | {
        "event": "preempted",
        "lost_tokens": 0,
        "moved_bytes": 4096,
        "swap_ms": 250.0,
        "recompute_ms": 750.0,
        "kv_share_before": 0.98,
        "kv_share_after": 0.61,
    }
    assert back == about | {"event": "resumed", "predicted_ms": 250.0, "real_ms": 300.0}


def test_a_way_that_was_not_open_has_no_cost() -> None:
    (line,) = written(departure(Mode.RECOMPUTE))
    assert line["swap_ms"] is None
    assert line["lost_tokens"] == 500


def test_thrashing_does_not_flood_the_log_and_loses_no_count() -> None:
    events: list[Departure | Comeback] = [departure(Mode.RECOMPUTE), departure(), comeback()] * 100
    *lines, rest = written(*events)
    assert len(lines) == LINES_AT_ONCE
    told = [line["event"] for line in lines]
    assert rest["event"] == "more_preemptions"
    assert rest["preempted"] == 200 - told.count("preempted")
    assert rest["resumed"] == 100 - told.count("resumed")
    assert rest["lost_tokens"] == 500 * 97
    assert rest["moved_bytes"] == 4096 * 97


def test_nothing_happened_is_no_line() -> None:
    assert written() == []
