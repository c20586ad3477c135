"""What ``make bench-overload`` concludes is what its figures say."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

FIELDS = (
    *("number", "tenant", "class", "prompt_tokens", "due", "sent", "first", "last", "ended", "tokens"),
    *("outcome", "status", "job"),
)


def row(due: float, *, took: float = 1.0, status: int = 200, outcome: str = "finished") -> list[Any]:
    answered = outcome == "finished"
    first, last = (due + 0.2, due + took) if answered else (None, None)
    return [
        0,
        "default",
        1,
        10,
        due,
        due,
        first,
        last,
        due + took,
        11 if answered else 0,
        outcome,
        status,
        "",
    ]


def point(rate: float, goodput: float, rows: list[list[Any]], seconds: float = 30.0) -> dict[str, Any]:
    figures = {"rate": rate, "goodput_per_second": goodput, "attainment": 0.9, "requests_per_second": goodput}
    client: dict[str, Any] = {"cpu_share": 0.1, "late_seconds": {"p99": 0.001}, "complaints": []}
    return figures | {
        "offered_per_second": rate,
        "window": [10.0, 10.0 + seconds],
        "ttft_seconds": {"p99": 0.2},
        "e2e_seconds": {"p99": 1.0},
        "client": client,
        "requests_sent": rows,
    }


def result(*points: dict[str, Any], valid: bool = True) -> dict[str, Any]:
    return {"valid": valid, "request_fields": list(FIELDS), "points": list(points)}


def series(first: float, last: float) -> list[tuple[float, int, float]]:
    """Memory in MB over five minutes: so much in the second, so much in the last one."""
    return [(float(at), int((first if at < 200 else last) * 1e6), at / 10) for at in range(300)]


def conclude(
    bench: Any, rows: list[list[Any]], goodput: float, grown: float = 1.0, samples: int = 300, **more: Any
) -> Any:
    module = bench("overload_figures")
    sweep = result(point(4.0, 3.9, []), point(8.0, 2.0, []))
    memory = module.MemorySeries(
        {"worker": series(100.0, 100.0 * grown)[:samples], "server": series(100.0, 100.0)[:samples]}
    )
    overload = result(point(12.0, goodput, rows), **more)
    return module.figures_of(sweep, overload, memory, module.Limits(None, 0.1, 6.0))


def test_the_peak_is_the_rate_of_most_goodput_and_windows_are_parts_of_it(bench: Any) -> None:
    # 39, 39 and 20 good ones in three windows; what came late, was cut off or refused is none.
    times = [10.0 + place / 4 for place in range(39)] + [20.0 + place / 4 for place in range(39)]
    rows = [row(due) for due in [*times, *(30.0 + place / 4 for place in range(20))]]
    rows += [
        row(12.0, took=6.5),
        row(13.0, outcome="failed"),
        row(39.0, took=0.02, status=503, outcome="refused"),
    ]
    rows += [row(9.0), row(41.0)]  # not due within the time
    found = conclude(bench, rows, goodput=3.6)
    assert found["peak"] == {"rate": 4.0, "goodput": 3.9}
    assert found["windows"] == [1.0, 1.0, round(2.0 / 3.9, 3)]
    assert found["outcomes"] == {"finished": 99, "failed": 1, "refused 503": 1}
    assert (found["refusals"], found["verdict"]) == (1, "held")
    assert bench("overload_figures").lines_of(found)[-1] == "held: every limit"


@pytest.mark.parametrize("samples", [0, 90])
def test_a_run_that_is_too_short_to_judge_memory_says_so(bench: Any, samples: int) -> None:
    found = conclude(bench, [row(20.0)], goodput=3.9, samples=samples)
    *_, told, verdict = bench("overload_figures").lines_of(found)
    assert found["memory_not_judged"] == ["worker", "server"]
    assert "NOT JUDGED: whether the memory of worker" in told
    assert verdict == "held: every limit but memory, which was not judged"


def test_a_process_that_ends_while_it_is_watched_ends_the_run(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = bench("overload")
    monkeypatch.setattr(module, "SAMPLE_SECONDS", 0.01)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    watch = module.MemoryWatch([module.Process("worker", ended.pid)])
    with pytest.raises(SystemExit, match="the worker ended"), watch.watching():
        poll_until(lambda: watch.ended)


def poll_until(found: Callable[[], object]) -> None:
    while not found():
        time.sleep(0.01)


def test_a_search_that_finds_nothing_good_ends_with_what_to_change(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = bench("overload")
    monkeypatch.setattr(module.Bench, "run", lambda *_: result(point(4.0, 0.0, [])))
    service: Any = SimpleNamespace(port=1)
    with pytest.raises(SystemExit, match="wider limits"):
        module.measure(service, 1, tmp_path, module.parse([]))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"goodput": 3.4}, "goodput fell to 87 %"),
        ({"grown": 1.1}, "memory of worker grew by 10 %"),
        ({"slow": 0.07}, "refusals at the door took 70 ms"),
    ],
)
def test_each_limit_can_be_missed(bench: Any, change: dict[str, Any], told: str) -> None:
    rows = [row(20.0), row(21.0, took=change.pop("slow", 0.01), status=429, outcome="refused")]
    found = conclude(bench, rows, **{"goodput": 3.9} | change)
    assert found["verdict"] == "missed"
    assert told in " ".join(found["missed"])


def test_what_a_worker_gave_up_is_told_beside_what_was_refused_at_the_door(bench: Any) -> None:
    rows = [row(20.0 + n / 100, took=0.01, status=503, outcome="refused") for n in range(99)]
    rows += [row(25.0, took=took, status=504, outcome="refused") for took in (2.0, 4.0)]
    rows += [row(27.0, took=9.0, status=500, outcome="refused"), row(28.0, took=9.0, outcome="failed")]
    found = conclude(bench, rows, goodput=3.9)
    assert (found["refusals"], found["given_up"]) == (99, 2)
    assert found["refusal_seconds"] == {"p50": pytest.approx(0.01), "p99": pytest.approx(0.01)}
    assert found["given_up_seconds"] == {"p50": pytest.approx(2.0), "p99": pytest.approx(4.0)}
    assert found["both_seconds"]["p99"] == pytest.approx(2.0)
    taken_in = 2 + 1  # those that were given up, and the one that failed later
    kept = bench("overload_figures").KEPT_BYTES * taken_in / 30 * 179 / 1e6
    assert found["memory"]["server"]["kept_mb"] == pytest.approx(kept, abs=0.01)
    told = "\n".join(bench("overload_figures").lines_of(found))
    assert "refused at the door (429, 503): 99, told after 10 ms (P50), 10 ms (P99)" in told
    assert "given up by the worker (504): 2, told after 2000 ms (P50), 4000 ms (P99)" in told


def test_a_client_that_was_the_bottleneck_says_nothing_of_the_service(bench: Any) -> None:
    assert conclude(bench, [row(20.0)], goodput=3.9, valid=False)["verdict"] == "invalid"


def test_a_peak_of_nothing_is_refused(bench: Any) -> None:
    with pytest.raises(ValueError, match="wider limits"):
        bench("overload_figures").peak_of(result(point(4.0, 0.0, [])))


def test_memory_is_compared_between_the_second_and_the_last_minute(bench: Any) -> None:
    shown = bench("overload_figures").MemorySeries({"worker": series(50.0, 60.0)}).shown(1.0)
    assert shown["worker"] == {
        "last_mb": 60.0,
        "most_mb": 60.0,
        "second_minute_mb": 50.0,
        "kept_mb": 0.0,
        "growth": 1.2,
        "cores": 0.1,
    }


def test_what_the_queues_server_keeps_of_accepted_jobs_by_its_promise_is_no_growth(bench: Any) -> None:
    module = bench("overload_figures")
    found = module.MemorySeries({"server": series(14.0, 14.0 + 10 * 179 * 8192 / 1e6)}).shown(10.0)["server"]
    assert found["growth"] == pytest.approx(1.0, abs=1e-3)
    assert found["kept_mb"] == pytest.approx(14.66, abs=0.01)
