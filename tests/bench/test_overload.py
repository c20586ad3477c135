"""What ``make bench-overload`` and ``make bench-policies`` conclude is what their figures say."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent.parent.parent / "ops/bench"
FIELDS = (
    *("number", "tenant", "class", "prompt_tokens", "due", "sent", "first", "last", "ended", "tokens"),
    *("outcome", "status", "job"),
)


@pytest.fixture(scope="module")
def bench() -> Any:
    """A module of ops/bench by its name; they import each other by name, as scripts do."""
    sys.path.insert(0, str(FOLDER))
    yield import_module
    sys.path.remove(str(FOLDER))


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
    memory = module.MemorySeries({"worker": series(100.0, 100.0 * grown)[:samples]})
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
    assert found["memory_not_judged"] == ["worker"]
    assert "NOT JUDGED: whether the memory of worker grows" in told
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
        ({"slow": 0.07}, "refusals took 70 ms"),
    ],
)
def test_each_limit_can_be_missed(bench: Any, change: dict[str, Any], told: str) -> None:
    rows = [row(20.0), row(21.0, took=change.pop("slow", 0.01), status=429, outcome="refused")]
    found = conclude(bench, rows, **{"goodput": 3.9} | change)
    assert found["verdict"] == "missed"
    assert told in " ".join(found["missed"])


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


def arm_file(folder: Path, name: str, goodputs: dict[float, float], ttft: float, seed: int) -> Path:
    points: list[dict[str, Any]] = [
        {
            "rate": rate,
            "concurrency": None,
            "goodput_per_second": goodput,
            "attainment": goodput / rate,
            "ttft_seconds": {"p99": ttft},
            # Start, seconds, requests, tokens, …: two busy seconds of four, one of them with a prompt.
            "workers": [{"steps": [[0.0, 1.0, 1, 50, 0, 0], [3.0, 1.0, 3, 3, 0, 0]]}],
            "client": {"complaints": []},
        }
        for rate, goodput in goodputs.items()
    ]
    told: dict[str, Any] = {
        "headway_bench": 1,
        "settings": {"attainment": 0.9, "seed": seed},
        "machine": {"processor": "one"},
        "valid": True,
        "interrupted": False,
        "points": points,
    }
    file = folder / f"{name}-{seed}.json"
    file.write_text(json.dumps(told))
    return file


def test_the_arms_are_compared_where_static_batching_has_the_most_goodput_by_medians(
    bench: Any, tmp_path: Path
) -> None:
    from headway.services.bench.comparison import compare, read_arms

    rounds = [({1.0: 0.5, 2.0: 0.8, 4.0: 0.1}, 4.0), ({1.0: 0.5, 2.0: 0.6, 4.0: 0.0}, 6.0)]
    rounds.append(({1.0: 0.5, 2.0: 0.4, 4.0: 3.0}, 5.0))  # the odd one out
    static = [arm_file(tmp_path, "static", goodputs, ttft, n) for n, (goodputs, ttft) in enumerate(rounds)]
    fair = [arm_file(tmp_path, "fair", {1.0: 1.0, 2.0: 1.9, 4.0: 2.0}, 0.5, n) for n in range(3)]
    arms = read_arms([*static, *fair], ["static"] * 3 + ["fair"] * 3)
    module = bench("static_against_fair")
    comparison = compare(arms, module.knee_of(arms[0]))
    assert not comparison.notes  # the rounds' seeds differ, and are the same for both arms
    found = module.figures_of(comparison)
    assert (found["knee_of_static"], found["knee_is_inside"]) == (2.0, True)
    assert found["ratios_at_knee"] == {"goodput": round(1.9 / 0.6, 3), "ttft_p99": 10.0}
    assert found["verdict"] == {"goodput": "held", "ttft_p99": "held"}
    assert found["engine_at_knee"]["static"] == {
        "busy_share": 0.5,
        "requests_in_a_step": 2.0,
        "prompt_share": 0.5,
    }
    assert "3.17" in " ".join(module.lines_of(found))
