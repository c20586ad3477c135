"""``headway simulate``'s core: what it reports is what the scheduler did, to the second."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path

import pytest

import headway.services.simulation as core
from headway.engine.blocks import BlockLedger
from headway.engine.limits import StepLimits
from headway.engine.policy import POLICIES
from headway.engine.scheduler import Scheduler
from headway.engine.values import FinishReason
from headway.services.hardware import Coefficients
from headway.services.percentile import percentile
from headway.services.simulation import END_TOKENS, Simulation
from headway.services.simulation_report import Limits, jain_index, report
from headway.services.simulation_run import GAP_SECONDS, SimulationRun
from headway.services.traffic import Backlog, Demand

SECOND_A_STEP = Coefficients(1.0, 0.0, 0.0)


def run(
    demands: Sequence[Demand],
    *,
    hardware: Coefficients = SECOND_A_STEP,
    policy: str = "fcfs",
    sequences: int = 4,
    step_tokens: int = 64,
    blocks: int = 64,
    backlogs: Sequence[Backlog] = (),
    until_seconds: float = 0.0,
    answer_limit: int | None = None,
    longest_tokens: int = 1024,
) -> SimulationRun:
    limits = StepLimits(
        max_step_tokens=step_tokens,
        max_sequences=sequences,
        max_waiting=10_000,
        max_step_seconds=10.0,  # a step takes a second here, whatever it holds
        max_gap_seconds=10.0,
    )
    scheduler = Scheduler(BlockLedger(blocks, 16), limits, POLICIES[policy](), END_TOKENS)
    simulation = Simulation(
        scheduler,
        hardware,
        demands,
        backlogs=backlogs,
        until_seconds=until_seconds,
        answer_limit=answer_limit,
        longest_tokens=longest_tokens,
    )
    simulated = simulation.run()
    scheduler.check()
    assert not scheduler.has_work
    return simulated


def demand(
    seconds: float, prompt: int, answer: int, tenant: str = "a", deadline: float | None = None
) -> Demand:
    return Demand(seconds, tenant, 1, prompt, answer, deadline_seconds=deadline)


def test_times_are_those_of_the_steps() -> None:
    simulated = run([demand(10.0, 5, 3), demand(10.5, 100, 2)])
    first, second = simulated.journeys
    # Steps of one second from 10 on; the second prompt comes during the first one and takes two chunks.
    assert (first.first_token_seconds, first.finish_seconds) == (11.0, 13.0)
    assert (second.first_scheduled_seconds, second.first_token_seconds, second.finish_seconds) == (11, 13, 14)
    assert simulated.gaps == {round(1 / GAP_SECONDS): 3}
    assert (simulated.steps, simulated.busy_seconds, simulated.end_seconds) == (4, 4.0, 14.0)
    assert simulated.computed_tokens == 5 + 2 + 100 + 1


def test_nothing_runs_between_arrivals_and_the_clock_jumps() -> None:
    simulated = run([demand(0.0, 5, 1), demand(1e6, 5, 1)])
    assert (simulated.steps, simulated.busy_seconds, simulated.end_seconds) == (2, 2.0, 1e6 + 1)


@pytest.mark.parametrize("answer_limit", [None, 1, 50])
def test_answers_have_the_length_of_the_trace_whatever_limit_clients_send(answer_limit: int | None) -> None:
    simulated = run([demand(0.0, 5, answer) for answer in (1, 2, 7)], answer_limit=answer_limit)
    assert [journey.tokens for journey in simulated.journeys] == [1, 2, 7]
    assert {journey.finish_reason for journey in simulated.journeys} == {FinishReason.STOP}


def test_a_request_that_can_never_fit_is_refused_and_the_others_go_on() -> None:
    simulated = run([demand(0.0, 2000, 5), demand(0.0, 10, 5)])
    assert [journey.is_refused for journey in simulated.journeys] == [True, False]
    assert simulated.journeys[1].finish_reason is FinishReason.STOP


def test_a_deadline_ends_a_request_that_waits_when_nothing_else_happens() -> None:
    simulated = run([demand(0.0, 5, 40), demand(0.0, 5, 40, deadline=3.5)], sequences=1)
    assert simulated.journeys[1].finish_reason is FinishReason.DEADLINE
    # The step that begins at 4 s is the first after 3.5 s, and brings the end with it.
    assert simulated.journeys[1].finish_seconds == 5.0


def test_lag_is_the_latest_token_against_its_own_deadline() -> None:
    simulated = run([demand(0.0, 5, 3)])
    # Tokens at 1, 2 and 3 s; the third may come 2 · 0.05 s later than the first.
    assert simulated.journeys[0].lag_seconds == pytest.approx(3 - 2 * 0.05)


def test_every_computed_token_is_booked_to_its_tenant_at_the_marginal_price() -> None:
    prices = Coefficients(0.5, 0.01, 0.001, 0.0001)
    simulated = run([demand(0.0, 30, 4, "a"), demand(0.0, 90, 9, "b")], hardware=prices)
    whole = sum(simulated.service.values())
    assert whole == pytest.approx(simulated.busy_seconds - 0.5 * simulated.steps)
    assert simulated.service["b"] > simulated.service["a"] > 0


def test_a_backlog_is_kept_until_the_time_is_over_and_then_drained() -> None:
    backlog = Backlog("heavy", 3, repeat(demand(0.0, 20, 5, "heavy")))
    simulated = run(
        [demand(float(at), 20, 5, "light") for at in range(20)],
        backlogs=[backlog],
        until_seconds=100.0,
        sequences=2,
    )
    heavy = [journey for journey in simulated.journeys if journey.demand.tenant == "heavy"]
    assert all(journey.finish_reason is FinishReason.STOP for journey in heavy)
    assert max(journey.arrival_seconds for journey in heavy) < 100.0 < simulated.end_seconds
    # Whenever one starts, the next one comes after that step: three wait at each moment.
    assert len(heavy) > 20
    started = sorted(journey.first_scheduled_seconds or 0.0 for journey in heavy)
    arrived = sorted(journey.arrival_seconds for journey in heavy)
    assert [start + 1.0 for start in started[:-3]] == arrived[3:]
    assert simulated.backlogged_seconds > 0


def test_figures_follow_their_definitions() -> None:
    simulated = run([demand(0.0, 5, 3), demand(0.0, 5, 1), demand(0.0, 5, 9, deadline=4.5)])
    figures = report(simulated, Limits(ttft_seconds=1.0, tpot_seconds=0.9), {})
    assert figures["requests"] == 3
    assert figures["finished"] == 2
    assert figures["past_deadline"] == 1
    # Both finished ones had their first token after one second; the gaps of one second are too long.
    assert figures["ttft_attainment"] == pytest.approx(2 / 3, abs=1e-4)
    assert figures["tpot_attainment"] == pytest.approx(1 / 3, abs=1e-4)
    assert figures["goodput_per_second"] == pytest.approx(1 / 5)
    assert figures["tpot_seconds"]["p99"] == pytest.approx(1.0)
    assert figures["preemptions"] == 0


def test_jain_index_by_its_formula() -> None:
    assert jain_index({"a": 2.0, "b": 2.0}, {}) == 1.0
    assert jain_index({"a": 1.0, "b": 3.0}, {"a": 1.0, "b": 3.0}) == 1.0
    assert jain_index({"a": 4.0, "b": 0.0}, {}) == 0.5
    assert jain_index({"a": 0.0, "b": 0.0}, {}) is None


def test_percentiles_are_nearest_ranks() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, percent) for percent in (1, 50, 99, 100)] == [1, 50, 99, 100]
    assert percentile([7.0], 50) == 7.0
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0, "in any order"
    with pytest.raises(ValueError, match="of nothing"):
        percentile([], 50)


def test_the_core_reads_no_clock_and_draws_nothing() -> None:
    assert core.__file__ is not None
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(Path(core.__file__).read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= {"__future__", "collections", "dataclasses", "typing", "headway"}
