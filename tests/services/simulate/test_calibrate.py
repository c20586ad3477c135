"""Calibration: the fit finds a line that is known, a file brings it back, steps are measured as they are."""

from __future__ import annotations

import json
import random
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headway.services.arrivals import lognormal_lengths, poisson
from headway.services.calibrate import StepWatch, calibration_of_live, load_host, measuring_settings
from headway.services.calibration import Calibration
from headway.services.cli import app
from headway.services.engine_run import EngineRun
from headway.services.errors import ServiceError, UsageError
from headway.services.hardware import StepWork
from headway.services.live_steps import LiveSteps
from headway.services.model_host import ModelHost
from headway.services.predict import predict
from headway.services.settings import WorkerSettings
from headway.services.simulate_settings import SimulateSettings
from headway.services.simulated_device import THIS_MACHINE, device_of, find_device
from headway.services.simulation_report import Limits, report
from headway.services.step_fit import Measured, fit
from headway.services.step_times import MeasuredMachine, StepLine, grouped_means
from headway.services.trace import chrome_trace
from headway.services.trace_facts import trace_facts
from headway.services.traffic import Demand

KINKED = StepLine(((1, 0.010), (8, 0.012), (64, 0.05), (512, 0.3)), 1e-4, 1e-6, 1e-8, (0.9, 1.0, 1.1))
TOY = "scripted:ms_per_step=0"


def steps_of(line: StepLine, count: int = 600) -> list[Measured]:
    drawn = random.Random(1)
    made: list[Measured] = []
    for _ in range(count):
        tokens = drawn.choice([1, 2, 4, 8, 16, 32, 64, 130, 300, 512])
        rows = min(tokens, drawn.choice([1, 2, 8, 16]))
        work = StepWork(tokens, drawn.randrange(100, 20_000), drawn.random() * 1e5, rows)
        made.append(Measured(work, line.seconds(work) * drawn.choice(line.ratios)))
    return made


def test_the_fit_finds_a_line_with_kinks_under_noise() -> None:
    steps = steps_of(KINKED)
    found = fit(steps)
    for work in {step.work for step in steps}:
        assert found.line.seconds(work) == pytest.approx(KINKED.seconds(work), rel=0.06)
    assert found.error_median == pytest.approx(0.1, abs=0.03)


def test_simulated_steps_take_as_long_on_average_as_the_measured_ones() -> None:
    steps = steps_of(KINKED)
    machine = MeasuredMachine(fit(steps).line, seed=1)
    total = sum(machine.seconds(step.work) for step in steps)
    assert total == pytest.approx(sum(step.seconds for step in steps), rel=0.02)


def test_no_price_comes_out_below_zero_whatever_was_measured() -> None:
    drawn = random.Random(2)
    noise = [Measured(StepWork(n, 9 * n, n * n, 1), drawn.random() + 0.01) for n in (1, 9, 70) * 20]
    line = fit(noise).line
    assert min(line.per_row, line.per_context_token, line.per_pair) >= 0.0
    assert all(later >= earlier for (_, earlier), (_, later) in zip(line.knots, line.knots[1:], strict=False))


def test_too_few_steps_are_no_fit() -> None:
    with pytest.raises(ValueError, match="3 steps were measured"):
        fit(steps_of(KINKED, 3))


def test_the_last_slope_goes_on_and_nothing_is_below_the_first_knot() -> None:
    assert KINKED.of_tokens(0) == KINKED.of_tokens(1) == 0.010
    assert KINKED.of_tokens(960) == pytest.approx(0.3 + 0.25)


def test_grouped_means_keep_the_mean() -> None:
    values = [random.Random(3).random() for _ in range(1000)]
    assert statistics.fmean(grouped_means(values, 100)) == pytest.approx(statistics.fmean(values))
    assert grouped_means([1.0], 100) == (1.0,)


@pytest.mark.parametrize(
    "knots", [((1.0, 0.1),), ((1.0, 0.1), (1.0, 0.2)), ((1.0, 0.2), (2.0, 0.1)), ((1.0, 0.0), (2.0, 0.1))]
)
def test_a_line_that_is_none_is_refused(knots: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(ValueError, match="two knots at least"):
        StepLine(knots, 0.0, 0.0, 0.0)


def test_a_calibration_comes_back_from_its_file_as_the_device_that_it_was(tmp_path: Path) -> None:
    made = Calibration("scripted", KINKED, 5000, 2048, 512, 3e9, False, 99, 0.02, 0.01, 0.002)
    made.write(tmp_path / "here.json")
    settings = SimulateSettings(hardware=THIS_MACHINE, calibration=tmp_path / "here.json", seed=5)
    read, direct = find_device(settings), device_of(made, 5)
    assert isinstance(read.hardware, MeasuredMachine)
    assert read.hardware.line == KINKED
    for name in (
        "name",
        "kv_tokens",
        "max_model_len",
        "kv_bytes_per_token",
        "before_seconds",
        "after_seconds",
    ):
        assert getattr(read, name) == getattr(direct, name)


def test_what_is_no_calibration_is_refused_with_what_to_do(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    for text in ("no json", "[1]", '{"line": {"knots": 3}}'):
        broken.write_text(text)
        with pytest.raises(UsageError, match="is no calibration"):
            find_device(SimulateSettings(hardware=THIS_MACHINE, calibration=broken))
    with pytest.raises(UsageError) as caught:
        find_device(SimulateSettings(hardware=THIS_MACHINE))
    assert caught.value.hint == "headway calibrate FILE, then --calibration FILE"


def test_steps_are_measured_as_the_engine_took_them() -> None:
    worker = WorkerSettings(model=TOY, max_sequences=4)
    watch = StepWatch(load_host(measuring_settings(worker)), worker.max_sequences)
    watch.measure(0.2, rounds=2)
    decodes = [step.work for step in watch.steps if step.work.new_tokens == step.work.rows]
    mixed = [step.work for step in watch.steps if step.work.new_tokens > step.work.rows]
    assert watch.counts() == [1, 2, 4]
    assert {work.rows for work in decodes} >= {1, 2, 4}
    assert max(work.new_tokens for work in mixed) > 100
    for work in decodes:
        assert work.pairs == pytest.approx(work.context_tokens - work.rows / 2), "each at its own place"
    assert all(step.seconds > 0 for step in watch.steps)


def test_the_simulation_tells_a_machines_throughput_that_it_was_calibrated_on() -> None:
    """The toy's own clock instead of the machine's: what is left is the difference of the two schedulers."""
    line = StepLine(((1, 0.0101), (101, 0.0201)), 0.0, 0.0, 0.0)
    worker = WorkerSettings(model="scripted:ms_per_step=10,us_per_token=100", max_sequences=4)
    host = load_host(worker)
    arrivals = list(poisson(6.0, 1.5, lognormal_lengths(60, 8), random.Random(4)))
    demands = [
        Demand(arrival.seconds, "default", 0, arrival.lengths.prompt_tokens, arrival.lengths.answer_tokens)
        for arrival in arrivals
    ]
    real = EngineRun(host.engine, host.model.tokenizer.vocab_size).run(demands)
    sizes = host.sizes
    device = device_of(
        Calibration("scripted", line, sizes.block_count * sizes.block_size, 4096, 1, 0.0, False, 1, 0.0), 0
    )
    told = predict(worker, device, demands, Limits())
    assert [journey.tokens for journey in told.journeys] == [journey.tokens for journey in real.journeys]
    assert report(told, Limits(), {})["finished"] == report(real, Limits(), {})["finished"] == len(demands)
    assert told.steps == pytest.approx(real.steps, rel=0.3)


def test_what_was_sent_is_heard_of_later_and_its_answer_too() -> None:
    line = StepLine(((1, 0.01), (2, 0.01)), 0.0, 0.0, 0.0)
    made = Calibration("x", line, 4000, 2048, 1, 0.0, False, 1, 0.0)
    demands = [Demand(1.0, "default", 0, 8, 2)]
    (near,), (far,) = (
        predict(WorkerSettings(), device_of(one, 0), demands, Limits()).journeys
        for one in (made, replace(made, before_seconds=0.5, after_seconds=0.25))
    )
    assert near.first_token_seconds == pytest.approx(1.01)
    assert far.first_token_seconds == pytest.approx(1.01 + 0.75)
    assert far.finish_seconds == pytest.approx(1.02 + 0.75)


def test_the_command_measures_the_engine_that_the_worker_would_have(tmp_path: Path) -> None:
    file = tmp_path / "here.json"
    command = ["calibrate", str(file), "--model", TOY, "--seconds", "1", "--max-sequences", "4"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    read = json.loads(file.read_text())
    assert read["model"] == TOY
    assert read["steps"] > 100
    assert read["kv_tokens"] == 1024 * 16


def test_a_folder_that_is_not_there_is_told_before_the_minute() -> None:
    with pytest.raises(ServiceError, match="there is no folder"):
        CliRunner().invoke(app, ["calibrate", "/nowhere/here.json", "--model", TOY], catch_exceptions=False)


def live_trace(host: ModelHost) -> dict[str, Any]:
    """As a worker's page tells it."""
    trace = chrome_trace([("w-1", host.engine.timeline)])
    facts = {"model": "scripted", "max_model_len": 4096, "kv_blocks": 1024, "settings": {"block_size": 16}}
    return json.loads(json.dumps(trace | {"otherData": facts}))  # type: ignore[no-any-return]  # JSON


def test_steps_of_a_live_worker_are_those_that_it_took_and_unseen_beginnings_are_left_out() -> None:
    worker = WorkerSettings(model=TOY, max_sequences=4)
    host = load_host(measuring_settings(worker))
    watch = StepWatch(host, worker.max_sequences)
    watch.measure(0.02, rounds=1)
    now = [0.0]
    before = len(watch.steps)
    asked: list[dict[str, Any]] = []

    def fetch() -> dict[str, Any]:
        if asked:
            watch.measure(0.02, rounds=1)
        asked.append(live_trace(host))
        return asked[-1]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    live = LiveSteps(fetch, sleep=sleep, clock=lambda: now[0])
    facts = live.collect(12.0, lambda _: None)
    assert facts["kv_blocks"] == 1024
    assert len(asked) == 4
    seen = [step.work for step in live.steps]
    # The ring may be shorter than what was computed between two looks; what is there is what was measured.
    taken = [step.work for step in watch.steps[before:]]
    assert seen
    assert set(seen) <= set(taken)


def test_keys_and_values_of_a_live_worker_are_as_large_as_it_says() -> None:
    """In 8 bits they are smaller than the model's name tells."""
    worker = WorkerSettings(model=TOY, max_sequences=4)
    host = load_host(worker)
    own = trace_facts(worker, host, clock=lambda: 0.0)
    assert own["kv_bytes_per_token"] == host.sizes.block_bytes // host.sizes.block_size > 0
    facts = own | {"model": "smollm2-135m", "kv_bytes_per_token": 12_240}
    steps = steps_of(KINKED)
    assert calibration_of_live(steps, facts, "url").kv_bytes_per_token == 12_240
    del facts["kv_bytes_per_token"]
    assert calibration_of_live(steps, facts, "url").kv_bytes_per_token == 23_040, "an older worker's"
    assert calibration_of_live(steps, facts | {"model": "unknown"}, "url").kv_bytes_per_token == 0


def test_steps_that_were_pushed_out_unseen_make_what_ran_then_unknown() -> None:
    def step(number: int, *names: str) -> dict[str, Any]:
        args = {"computed": dict.fromkeys(names, 1), "sampled_tokens": len(names)}
        return {"ph": "X", "name": f"step {number}", "ts": 1e6 * number, "dur": 1e5, "args": args}

    traces = iter(
        [
            {"traceEvents": [step(1, "old")]},
            {"traceEvents": [step(1, "old"), step(2, "old", "a"), step(3, "a")]},
            {"traceEvents": [step(7, "a"), step(8, "b"), step(9, "a", "b")]},
        ]
    )
    now = [0.0]
    live = LiveSteps(
        lambda: next(traces), sleep=lambda s: now.__setitem__(0, now[0] + s), clock=lambda: now[0]
    )
    live.collect(10.0, lambda _: None)
    assert [step.work.context_tokens for step in live.steps] == [2, 1], "step 3 of a, step 8 of b"
    assert [step.seconds for step in live.steps] == [0.1, 0.1], "the pause behind them is not theirs"
