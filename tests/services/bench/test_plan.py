"""What is sent: the same for the same seed, at the rate and of the lengths that were asked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headway.services.arrivals import Lengths, fitting_scale
from headway.services.bench.plan import make_work
from headway.services.bench.prompts import WORDS, make_writer
from headway.services.bench.settings import BenchSettings

SETTINGS = BenchSettings(prompt_tokens=40, answer_tokens=8)


async def by_words(text: str) -> int:
    """A tokenizer of words, with a template of 7."""
    return len(text.split()) + 7


async def by_bytes(text: str) -> int:
    return len(text) + 3


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    rows = "\n".join(f"{place * 0.5},{100 * (place + 1)},{10 * (place + 1)}" for place in range(20))
    path.write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{rows}\n")
    return path


def test_the_same_seed_plans_the_same_requests_and_another_seed_others() -> None:
    work = make_work(replace(SETTINGS, cancel_ratio=0.3, length_spread=1.0), None)
    first = list(work.open_loop(20.0, 10.0, "1"))
    assert first == list(work.open_loop(20.0, 10.0, "1"))
    assert first != list(work.open_loop(20.0, 10.0, "2"))
    assert 0 < sum(planned.cancel_after is not None for planned in first) < len(first)


@pytest.mark.parametrize("arrivals", ["poisson", "burst", "on-off"])
def test_every_process_sends_as_many_as_its_rate_says(arrivals: str) -> None:
    settings = replace(SETTINGS, arrivals=arrivals, on_seconds=1.0, off_seconds=3.0)  # type: ignore[arg-type]  # a literal's text
    times = [planned.seconds for planned in make_work(settings, None).open_loop(50.0, 200.0, "1")]
    assert times == sorted(times)
    assert len(times) == pytest.approx(10_000, rel=0.15)
    if arrivals == "on-off":
        assert all(at % 4.0 <= 1.0 for at in times)


def test_a_trace_is_replayed_at_the_asked_rate_with_lengths_that_fit_the_context(trace: Path) -> None:
    fitted = make_work(replace(SETTINGS, trace=trace, length_scale=None), 1100)
    assert fitted.length_scale == pytest.approx(0.5)
    sent = list(fitted.open_loop(4.0, 100.0, "1"))
    assert len(sent) == 20
    assert sent[-1].seconds == pytest.approx(9.5 * fitted.trace_rate / 4.0)
    assert max(each.demand.prompt_tokens + each.demand.answer_tokens for each in sent) <= 1100
    assert fitted.cut_rows == 0
    doubled = make_work(replace(SETTINGS, trace=trace, rate_scales=(1.0, 2.0)), 8000)
    assert doubled.rates == pytest.approx((20 / 9.5, 40 / 9.5), rel=1e-3)
    assert [each.seconds for each in doubled.open_loop(40 / 9.5, 100.0, "1")][:3] == pytest.approx(
        [0, 0.25, 0.5]
    )
    cut = make_work(replace(SETTINGS, trace=trace), 1100)
    assert cut.cut_rows == 10
    assert all(
        each.demand.prompt_tokens + each.demand.answer_tokens <= 1100
        for each in cut.open_loop(4.0, 100.0, "1")
    )


@pytest.mark.parametrize("count", [by_words, by_bytes])
async def test_a_synthetic_prompt_has_exactly_the_asked_tokens(count: object) -> None:
    writer = await make_writer(count, (), "0")  # type: ignore[arg-type]  # either counts a text
    work = make_work(replace(SETTINGS, prompt_tokens=64, shared_prefix_tokens=16, length_spread=0.5), None)
    planned = list(work.open_loop(20.0, 5.0, "1"))
    assert writer.is_exact
    for each in planned:
        text = writer.write(each, "0")
        assert await (by_words if count is by_words else by_bytes)(text) == each.demand.prompt_tokens


async def test_prompts_share_their_tenants_prefix_and_nothing_else() -> None:
    writer = await make_writer(by_words, (), "0")
    work = make_work(replace(SETTINGS, shared_prefix_tokens=16), None)
    one, other = (writer.write(each, "0").split() for each in list(work.open_loop(5.0, 5.0, "1"))[:2])
    assert one[:16] == other[:16]
    assert one[16:] != other[16:]
    again = writer.write(next(iter(work.open_loop(5.0, 5.0, "1"))), "1").split()
    assert again[:16] == one[:16]
    assert again[16:] != one[16:], "a cache must not hold a prompt from the point before"


def test_every_request_brings_the_deadline_that_was_asked_for() -> None:
    for asked in (None, 6.0):
        work = make_work(replace(SETTINGS, deadline_seconds=asked), None)
        assert {planned.demand.deadline_seconds for planned in work.open_loop(20.0, 3.0, "1")} == {asked}


def test_a_scale_lets_a_share_of_the_lengths_fit_and_lengthens_none() -> None:
    rows = [Lengths(90 * place, 10 * place) for place in range(1, 101)]
    assert fitting_scale(rows, 5000) == 0.5
    assert fitting_scale(rows, 5000, share=0.5) == 5000 / 5100
    assert fitting_scale(rows, 50_000) == 1.0


async def test_a_file_gives_its_own_words(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("one two three four five six seven eight")
    writer = await make_writer(by_words, (path,), "0")
    planned = next(iter(make_work(SETTINGS, None).open_loop(5.0, 5.0, "1")))
    assert set(writer.write(planned, "0").split()) <= set(path.read_text().split())
    assert not writer.is_exact


def test_the_words_are_distinct() -> None:
    assert len(set(WORDS)) == len(WORDS) > 200
