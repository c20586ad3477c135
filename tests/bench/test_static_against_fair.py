"""What ``make bench-policies`` concludes is what its figures say, and nothing where they cannot say it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.services.bench.comparison import Comparison, compare, read_arms
from headway.services.bench.result import FORMAT

Goodputs = dict[float, float]
INSIDE: Goodputs = {1.0: 0.5, 2.0: 0.6, 4.0: 0.1}
"""Of static batching: most at 2/s, which is neither the first nor the last rate."""
FAIR: Goodputs = {1.0: 1.0, 2.0: 1.9, 4.0: 2.0}
# Start, seconds, requests, tokens, …: two busy seconds of four, one of them with a prompt.
STEPS = [[10.0, 1.0, 1, 50, 0, 0], [13.0, 1.0, 3, 3, 0, 0]]


def arm_file(
    folder: Path, name: str, goodputs: Goodputs, ttft: float, seed: int = 0, *, valid: bool = True
) -> Path:
    """A result of ``headway bench --json``, with what is read of it here."""
    points: list[dict[str, Any]] = [
        {
            "rate": rate,
            "concurrency": None,
            "window": [10.0, 14.0],
            "goodput_per_second": goodput,
            "attainment": goodput / rate,
            "ttft_seconds": {"p99": ttft},
            "workers": [{"from_seconds": 0.0, "steps": STEPS}],
            "client": {"complaints": []},
        }
        for rate, goodput in goodputs.items()
    ]
    told: dict[str, Any] = {
        "headway_bench": FORMAT,
        "settings": {"attainment": 0.9, "seed": seed},
        "slos": {},
        "machine": {"processor": "one"},
        "valid": valid,
        "interrupted": False,
        "points": points,
    }
    file = folder / f"{name}-{seed}.json"
    file.write_text(json.dumps(told))
    return file


def compared(bench: Any, *arms: tuple[str, Path]) -> Comparison:
    found = read_arms([file for _, file in arms], [name for name, _ in arms])
    return compare(found, bench("static_against_fair").peak_of(found[0]))


def two_arms(
    bench: Any, folder: Path, static: Goodputs = INSIDE, fair: Goodputs = FAIR, *, valid: bool = True
) -> dict[str, Any]:
    files = arm_file(folder, "static", static, 5.0), arm_file(folder, "fair", fair, 0.5, valid=valid)
    comparison = compared(bench, *zip(("static", "fair"), files, strict=True))
    figures: dict[str, Any] = bench("static_against_fair").figures_of(comparison)
    return figures


def test_the_arms_are_compared_where_static_batching_has_the_most_goodput_by_medians(
    bench: Any, tmp_path: Path
) -> None:
    rounds = [({1.0: 0.5, 2.0: 0.8, 4.0: 0.1}, 4.0), ({1.0: 0.5, 2.0: 0.6, 4.0: 0.0}, 6.0)]
    rounds.append(({1.0: 0.5, 2.0: 0.4, 4.0: 3.0}, 5.0))  # the odd one out
    arms = [("static", arm_file(tmp_path, "static", *figures, n)) for n, figures in enumerate(rounds)]
    arms += [("fair", arm_file(tmp_path, "fair", FAIR, 0.5, n)) for n in range(3)]
    comparison = compared(bench, *arms)
    assert not comparison.notes  # the rounds' seeds differ, and are the same for both arms
    module = bench("static_against_fair")
    found = module.figures_of(comparison)
    assert (found["peak_of_static"], found["doubts"]) == (2.0, [])
    assert found["ratios_at_peak"] == {"fair": {"goodput": round(1.9 / 0.6, 3), "ttft_p99": 10.0}}
    assert (found["goals"], found["verdict"]) == ({"goodput": "held", "ttft_p99": "held"}, "held")
    told = module.lines_of(found)
    assert "goodput of fair ÷ static there: 3.17 (goal 3): held" in "\n".join(told)
    assert told[-1] == "held"


def test_a_goal_that_is_not_reached_is_missed(bench: Any, tmp_path: Path) -> None:
    found = two_arms(bench, tmp_path, fair={1.0: 1.0, 2.0: 1.7, 4.0: 2.0})
    assert (found["goals"]["goodput"], found["verdict"]) == ("missed", "missed")


@pytest.mark.parametrize(
    ("static", "words"),
    [
        ({1.0: 0.1, 2.0: 0.3, 4.0: 0.4}, "at the last rate (4/s), so its peak may lie higher"),
        ({1.0: 0.3, 2.0: 0.2, 4.0: 0.1}, "at the first rate (1/s), so its peak may lie lower"),
    ],
)
def test_a_peak_at_the_edge_of_the_rates_concludes_nothing(
    bench: Any, tmp_path: Path, static: Goodputs, words: str
) -> None:
    found = two_arms(bench, tmp_path, static)
    assert set(found["goals"].values()) == {"held"}, "or it would not be the edge that decides"
    assert found["verdict"] == "open"
    last = bench("static_against_fair").lines_of(found)[-1]
    assert last.startswith("NOT CONCLUDED")
    assert words in last


def test_a_client_that_was_the_bottleneck_concludes_nothing(bench: Any, tmp_path: Path) -> None:
    found = two_arms(bench, tmp_path, valid=False)
    assert found["verdict"] == "open"
    assert found["doubts"] == ["the client was the bottleneck in the turn of fair in round 1"]


@pytest.mark.parametrize(
    ("static", "valid", "code"),
    [(INSIDE, True, 0), ({1.0: 0.5, 2.0: 1.8, 4.0: 0.1}, True, 1), (INSIDE, False, 2)],
)
def test_the_exit_code_says_held_missed_or_nothing_concluded(
    bench: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    static: Goodputs,
    valid: bool,
    code: int,
) -> None:
    """All but the measuring itself; four arms are a page with four timelines and all their ratios."""
    module = bench("static_against_fair")
    turns: list[str] = []

    def turn(arm: str, number: int, file: Path, options: Any) -> None:
        turns.append(arm)
        made = arm_file(options.output, "made", static if arm == "static" else FAIR, 0.5, number, valid=valid)
        made.rename(file)

    monkeypatch.setattr(module, "turn", turn)
    monkeypatch.setattr(module, "comparison_page", lambda comparison: f"{len(comparison.arms)} arms")
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,10,10\n1,10,10\n")
    output = tmp_path / "out"
    arguments = ["--trace", str(trace), "--arms", "fair,static,dynamic,fixed-chunks", "--rounds", "2"]
    monkeypatch.setattr("sys.argv", ["static_against_fair.py", *arguments, "--output", str(output)])
    monkeypatch.setattr(module.signal, "signal", lambda *_: None)
    # P99 of the time to first token is the same in all arms: only goodput is looked at here.
    monkeypatch.setitem(module.GOALS, "ttft_p99", 1.0)
    assert module.main() == code
    assert turns[:4] == ["static", "dynamic", "fixed-chunks", "fair"]
    assert turns[4:] == ["dynamic", "fixed-chunks", "fair", "static"]
    figures = json.loads((output / "comparison.json").read_text())
    assert list(figures["ratios_at_peak"]) == ["dynamic", "fixed-chunks", "fair"]
    assert (output / "comparison.html").read_text() == "4 arms"
    assert "goodput of dynamic ÷ static there" in capsys.readouterr().out


def test_what_the_engine_did_is_told_of_the_measured_time_only(bench: Any, tmp_path: Path) -> None:
    found = two_arms(bench, tmp_path)
    assert found["engine_at_peak"]["static"] == {
        "busy_share": 0.5,
        "requests_in_a_step": 2.0,
        "prompt_share": 0.5,
        "known_share": 1.0,
    }


def test_the_last_steps_are_not_told_as_if_they_were_all(bench: Any, tmp_path: Path) -> None:
    file = arm_file(tmp_path, "static", INSIDE, 5.0)
    made = json.loads(file.read_text())
    for point in made["points"]:
        point["workers"] = [{"from_seconds": 13.0, "steps": STEPS[1:]}]  # the first ones were pushed out
    file.write_text(json.dumps(made))
    fair = arm_file(tmp_path, "fair", FAIR, 0.5)
    module = bench("static_against_fair")
    found = module.figures_of(compared(bench, ("static", file), ("fair", fair)))
    assert found["engine_at_peak"]["static"] == {
        "busy_share": 1.0,
        "requests_in_a_step": 3.0,
        "prompt_share": 0.0,
        "known_share": 0.25,
    }
    static, whole = (line for line in module.lines_of(found) if "engine of" in line)
    assert "busy for 100% of the last 25% of the time (earlier steps are not kept)" in static
    assert "busy for 50% of the time," in whole


@pytest.mark.parametrize(
    ("arms", "words"), [("static,fair,greedy", "there is no greedy"), ("static,dynamic", "static and fair")]
)
def test_arms_that_there_are_not_or_that_leave_nothing_to_judge_are_refused(
    bench: Any, arms: str, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        bench("static_against_fair").parse_arms(arms)
