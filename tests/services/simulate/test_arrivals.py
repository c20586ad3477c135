"""Arrivals come as often, as evenly and as long as asked; files of another form say what is wrong."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean, median, pstdev

import pytest

from headway.services.arrivals import (
    Arrival,
    burst,
    lengths_of,
    lognormal_lengths,
    poisson,
    read_trace,
    replay,
)
from headway.services.errors import UsageError
from headway.services.simulated_tenants import SimulatedTenant, read_tenants
from headway.services.traffic import assign, backlogs

DRAW = lognormal_lengths(500, 100)


def gaps(arrivals: list[Arrival]) -> list[float]:
    return [later.seconds - earlier.seconds for earlier, later in pairwise(arrivals)]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_poisson_arrivals_have_the_rate_and_the_spread_of_a_poisson_process() -> None:
    arrivals = list(poisson(20.0, 500.0, DRAW, Random(1)))
    between = gaps(arrivals)
    assert fmean(between) == pytest.approx(1 / 20, rel=0.05)
    assert pstdev(between) / fmean(between) == pytest.approx(1.0, rel=0.05)


def test_bursts_have_the_same_rate_and_the_spread_that_is_asked() -> None:
    between = gaps(list(burst(20.0, 2000.0, 4.0, DRAW, Random(1))))
    assert fmean(between) == pytest.approx(1 / 20, rel=0.1)
    assert pstdev(between) / fmean(between) == pytest.approx(4.0, rel=0.1)


def test_lognormal_lengths_have_the_medians_that_are_asked() -> None:
    random = Random(2)
    drawn = [DRAW(random) for _ in range(4000)]
    assert median(lengths.prompt_tokens for lengths in drawn) == pytest.approx(500, rel=0.1)
    assert median(lengths.answer_tokens for lengths in drawn) == pytest.approx(100, rel=0.1)
    assert min(min(lengths.prompt_tokens, lengths.answer_tokens) for lengths in drawn) >= 1
    assert {lognormal_lengths(7, 3, 0.0)(random).prompt_tokens for _ in range(5)} == {7}


def test_a_trace_starts_at_zero_is_in_order_and_can_be_sped_up_and_cut(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:08.9799600,20,2\n2023-11-16 18:17:03.9799600,10,1\n"
        "2023-11-16 18:18:03.9799600,30,3\n",
    )
    trace = read_trace(path)
    assert [(round(row.seconds, 3), row.lengths.prompt_tokens) for row in trace] == [
        (0, 10),
        (5, 20),
        (60, 30),
    ]
    assert [round(row.seconds, 3) for row in replay(trace, 10.0, None)] == [0, 0.5, 6]
    assert [round(row.seconds, 3) for row in replay(trace, 10.0, 1.0)] == [0, 0.5]
    assert lengths_of(trace)(Random(0)).answer_tokens in {1, 2, 3}


def test_a_burstgpt_trace_is_read_without_its_failed_requests(tmp_path: Path) -> None:
    path = write(
        tmp_path / "burst.csv",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,Conversation log\n"
        "118,GPT-4,417,276,693,Conversation log\n",
    )
    assert [(row.seconds, row.lengths.answer_tokens) for row in read_trace(path)] == [(0, 18), (113, 276)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no column TIMESTAMP"),
        ("TIMESTAMP,ContextTokens\n1,2\n", "no column GeneratedTokens"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no request"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,3\nsoon,2,3\n", "line 3"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2,3\nnan,2,3\n", "line 3: nan is no time"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\ninf,2,3\n", "line 2: inf is no time"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n1,0,3\n", "line 2"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2\n", "line 2"),
    ],
)
def test_a_broken_trace_says_what_is_wrong(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        read_trace(write(tmp_path / "t.csv", text))


def test_arrivals_are_spread_by_share_and_class_and_carry_their_deadline() -> None:
    tenants = [
        SimulatedTenant("a", share=3, classes={"interactive": 1, "batch": 1}, deadlines={"batch": 60.0}),
        SimulatedTenant("b", share=1, shared_prefix_tokens=50, prompt_tokens=10),
    ]
    demands = list(assign(poisson(10.0, 400.0, DRAW, Random(1)), tenants, Random(2)))
    of_a = [demand for demand in demands if demand.tenant == "a"]
    assert len(of_a) / len(demands) == pytest.approx(0.75, abs=0.03)
    assert sum(demand.priority == 2 for demand in of_a) / len(of_a) == pytest.approx(0.5, abs=0.05)
    assert all(demand.deadline_seconds == (60.0 if demand.priority == 2 else None) for demand in of_a)
    assert {demand.prompt_tokens for demand in demands if demand.tenant == "b"} == {60}


def test_a_tenant_with_a_backlog_takes_no_share_of_the_arrivals() -> None:
    tenants = [SimulatedTenant("open"), SimulatedTenant("heavy", backlog=5, share=100)]
    demands = list(assign(poisson(10.0, 10.0, DRAW, Random(1)), tenants, Random(2)))
    assert {demand.tenant for demand in demands} == {"open"}
    (backlog,) = backlogs(tenants, DRAW, seed=1)
    (again,) = backlogs(tenants, DRAW, seed=1)
    assert (backlog.tenant, backlog.waiting) == ("heavy", 5)
    assert [next(backlog.demands) for _ in range(9)] == [next(again.demands) for _ in range(9)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "tenant"),
        ("[tenant.a]\nshare = 0", "tenant.a.share"),
        ("[tenant.a]\nshare = inf", "tenant.a.share"),
        ("[tenant.a]\nbacklog = 1000000000", "tenant.a.backlog"),
        ("[tenant.a]\nwheight = 2", "tenant.a.wheight"),
        ("[tenant.a]\ndeadlines = {interactive = 'soon'}", "tenant.a.deadlines.interactive"),
        ("[tenant.a]\nclasses = {urgent = 1}", "tenant.a.classes.urgent"),
        ("[tenant.a]\nclasses = {batch = 0}", "at least one class"),
        ("[tenant.a", "cannot read the tenants"),
    ],
)
def test_a_broken_tenants_file_names_the_place(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=says):
        read_tenants(write(tmp_path / "t.toml", text))
