"""Arms side by side: medians over rounds, ratios to the first, and what makes a comparison worth less."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tests.services.bench.conftest import answered
from typer.testing import CliRunner

from headway.services.bench.answer import Answer
from headway.services.bench.client_watch import ClientLoad
from headway.services.bench.comparison import compare, read_arms
from headway.services.bench.comparison_page import comparison_page
from headway.services.bench.comparison_table import comparison_table
from headway.services.bench.figures import point_figures, summary
from headway.services.bench.load import Loaded, Point
from headway.services.bench.result import FORMAT, ROW_FIELDS, request_row
from headway.services.bench.settings import BenchSettings, Slos
from headway.services.cli import app
from headway.services.errors import UsageError


def result_of(points: dict[float, list[Answer]], **settings: Any) -> dict[str, Any]:
    """A result as ``headway bench --json`` writes it, of made-up answers."""
    made = BenchSettings(**settings)
    shown = []
    for rate, answers in points.items():
        loaded = Loaded(Point("0", rate=rate), 0.0, 10.0, answers=answers)
        shown.append(
            {
                "rate": rate,
                "concurrency": None,
                "window": [0.0, 10.0],
                "interrupted": False,
                **point_figures(loaded, made.slos, {}),
                "client": {
                    **ClientLoad(0.1, 0.0, 0.0, 0.0, 10.0).shown(),
                    "late_seconds": summary([0.0]),
                    "complaints": [],
                },
                "requests_sent": [request_row(answer) for answer in answers],
                "workers": [],
            }
        )
    return {
        "headway_bench": FORMAT,
        "started": "2026-11-30T12:00:00+00:00",
        "valid": True,
        "interrupted": False,
        "notes": [],
        "settings": made.shown(),
        "target": {"model": "m", "context_tokens": None, "server": "", "told": {}},
        "workers": [],
        "machine": {"processor": "p", "cores": 2, "system": "s"},
        "work": {"summary": "poisson"},
        "slos": made.shown()["slos"],
        "knee": None,
        "request_fields": list(ROW_FIELDS),
        "points": shown,
    }


def answers_of(count: int, ttft: float) -> list[Answer]:
    return [answered(place / 10, [place / 10 + ttft, place / 10 + ttft + 0.05]) for place in range(count)]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """An arm that is slow at 4/s, in three rounds of which one was bad, and one that is not."""
    results = [
        result_of({1.0: answers_of(10, 0.2), 4.0: answers_of(40, 2.0)}),
        result_of({1.0: answers_of(10, 9.0), 4.0: answers_of(40, 9.0)}),
        result_of({1.0: answers_of(10, 0.2), 4.0: answers_of(40, 2.0)}),
        result_of({1.0: answers_of(10, 0.1), 4.0: answers_of(40, 0.5)}),
    ]
    paths = [tmp_path / f"{number}.json" for number in range(len(results))]
    for path, result in zip(paths, results, strict=True):
        path.write_text(json.dumps(result))
    return paths


LABELS = ["static", "static", "static", "fair"]


def test_rounds_of_an_arm_become_their_median_and_ratios_are_to_the_first_arm(files: list[Path]) -> None:
    comparison = compare(read_arms(files, LABELS), None)
    static, fair = comparison.arms
    assert static.value(1.0, ("ttft_seconds", "p99")) == pytest.approx(0.2)
    assert comparison.ratio(fair, 4.0, ("ttft_seconds", "p99")) == pytest.approx(0.25)
    assert (static.knee.served, static.knee.failed) == (1.0, 4.0)
    assert fair.knee.failed is None
    assert comparison.at == 1.0, "the first one's knee"
    assert comparison.notes == ()


def test_an_arms_knee_is_that_of_the_points_whose_client_kept_up(files: list[Path]) -> None:
    for file in files[:2]:  # two rounds of three: of the medians nothing else would be left
        result = json.loads(file.read_text())
        result["points"][0]["client"]["complaints"] = ["late"]
        file.write_text(json.dumps(result))
    (static,) = read_arms(files[:3], LABELS[:3])
    assert (static.knee.served, static.knee.failed) == (1.0, 4.0)
    (lost,) = read_arms(files[:1], ())
    assert (lost.knee.served, lost.knee.failed) == (None, 4.0)
    result = json.loads(files[0].read_text())
    result["points"][1]["client"]["complaints"] = ["late"]
    files[0].write_text(json.dumps(result))
    comparison = compare(read_arms(files[:1], ["lost"]), 1.0)
    assert "lost: serves an unknown rate" in "\n".join(comparison_table(comparison))


def test_the_table_the_json_and_the_page_tell_the_same(files: list[Path]) -> None:
    comparison = compare(read_arms(files, LABELS), 4.0)
    told = "\n".join(comparison_table(comparison))
    assert "static, 3 rounds" in told
    assert "static: serves 1 requests/s, no longer 4" in told
    assert re.search(r"TTFT P99 +2\.00 s +500\.0 ms +0\.25", told)
    cells = comparison.figures()["cells"]
    assert [(cell["label"], cell["load"]) for cell in cells][2:] == [("static", 4.0), ("fair", 4.0)]
    assert cells[-1]["ratios"]["TTFT P99"] == pytest.approx(0.25)
    page = comparison_page(comparison)
    assert "500.0 ms" in page
    assert page.count('class="timeline"') == 2


class _Strict(HTMLParser):
    """Counts what is open, and what would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [f"{tag} {name}" for name, _ in attrs if name in {"src", "href", "srcset"}]
        if tag not in {"meta", "br"}:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [f"{tag} {name}" for name, _ in attrs if name in {"src", "href"}]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_is_well_formed_fetches_nothing_and_escapes_what_others_wrote(files: list[Path]) -> None:
    page = comparison_page(compare(read_arms(files, ["a", "a", "a", "<script>"]), None))
    assert "<script>" not in page
    parser = _Strict()
    parser.feed(page)
    parser.close()
    assert (parser.open, parser.fetched) == ([], [])
    assert "url(" not in page


def test_other_work_another_machine_and_invalid_points_are_told(files: list[Path], tmp_path: Path) -> None:
    other = result_of({1.0: answers_of(10, 0.1)}, prompt_tokens=999, slos=Slos(2.0, None, None))
    other |= {"valid": False, "interrupted": True, "machine": {"processor": "q", "cores": 1, "system": "s"}}
    path = tmp_path / "other.json"
    path.write_text(json.dumps(other))
    notes = "\n".join(compare(read_arms([files[0], path], ()), None).notes)
    assert "prompt_tokens 999 instead of 256" in notes
    assert "another machine (q)" in notes
    assert "invalid" in notes
    assert "interrupted" in notes


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "cannot read"), ("no json", "cannot read"), ("{}", "is no result"), ("[1]", "is no result")],
)
def test_a_file_that_is_no_result_is_named(content: str | None, words: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match=words):
        read_arms([path], ())


def test_what_cannot_be_compared_is_refused(files: list[Path]) -> None:
    with pytest.raises(UsageError, match="4 files and 1 labels"):
        read_arms(files, ["a"])
    with pytest.raises(UsageError, match="nothing was measured at 3"):
        compare(read_arms(files, ()), 3.0)


def test_the_command_writes_what_it_is_asked_for(files: list[Path], tmp_path: Path) -> None:
    page = tmp_path / "compare.html"
    arguments = ["bench", "compare", str(files[0]), str(files[3]), "--html", str(page), "--json", "-"]
    done = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert json.loads(done.stdout)["headway_bench_compare"] == 1
    assert page.read_text().startswith("<!doctype html>")
