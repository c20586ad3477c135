"""``headway tune``: finds the best of a landscape that is known, by the seed alone, and says what to set."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.services.arrivals import Arrival, Lengths
from headway.services.calibrate import show_nothing
from headway.services.calibration import Calibration
from headway.services.cli import app
from headway.services.errors import UsageError
from headway.services.settings import WorkerSettings
from headway.services.simulated_device import device_of
from headway.services.simulation_report import Limits
from headway.services.step_times import StepLine
from headway.services.tune import Tuned, TuneLoad, Tuner
from headway.services.tune_search import REPLICATES, Score, ranked, search
from headway.services.tune_space import as_arguments, as_environment, current, grid

LINE = StepLine(((1, 0.02), (16, 0.03), (512, 0.4)), 1e-4, 1e-6, 1e-8, (0.95, 1.0, 1.05))
CALIBRATION = Calibration("scripted", LINE, 20_000, 2048, 1024, 0.0, False, 500, 0.03)
LIMITS = Limits(2.0, 0.1)


def landscape(candidate: int, replicate: int) -> Score:
    """Best at 42; a replicate is lucky or not for all alike, and a little noise is everyone's own."""
    luck = random.Random(replicate).uniform(-3.0, 3.0)
    noise = random.Random(f"{candidate} {replicate}").uniform(-0.1, 0.1)
    return Score(max(0.0, 10.0 - abs(candidate - 42) + luck + noise), 1.0)


def test_the_best_of_a_known_landscape_is_found_with_few_of_all_trials() -> None:
    trials = 0

    def trial(candidate: int, replicate: int) -> Score:
        nonlocal trials
        trials += 1
        return landscape(candidate, replicate)

    found = search(range(100), trial)
    assert found[0].candidate == 42
    assert trials < 100 * REPLICATES / 3
    assert all(len(tried.scores) == REPLICATES for tried in found)


def test_the_same_landscape_gives_the_same_search() -> None:
    first, second = (search(range(60), landscape) for _ in range(2))
    assert first == second


def test_who_is_to_be_compared_with_stays_to_the_end() -> None:
    found = search(range(100), landscape, always=3)
    assert found[-1].candidate == 3
    assert len(found[-1].scores) == REPLICATES


def test_of_equal_goodput_the_shorter_wait_is_better() -> None:
    waits = {1: 0.5, 2: 0.2, 3: 0.1}
    goodputs = {1: 10.0, 2: 9.99, 3: 9.0}
    found = search(waits, lambda candidate, _: Score(goodputs[candidate], waits[candidate]))
    assert [tried.candidate for tried in ranked(found)] == [2, 1, 3]


def test_the_interval_holds_the_truth_of_a_landscape_about_as_often_as_it_says() -> None:
    held = 0
    for seed in range(200):
        drawn = random.Random(seed)
        (tried,) = search([0], lambda _, __, d=drawn: Score(d.gauss(5.0, 1.0), 0.0))  # type: ignore[misc]  # bound now
        held += abs(tried.goodput - 5.0) <= tried.margin
    assert 180 <= held <= 198


def test_the_grid_holds_the_workers_own_settings_first_and_none_that_cannot_work() -> None:
    worker = WorkerSettings(max_batch_tokens=300, max_sequences=5)
    candidates = grid(worker, 600)
    assert candidates[0] == current(worker)
    assert all(one.max_sequences <= one.max_batch_tokens for one in candidates)
    assert all(one.max_sequences * one.block_size <= 600 for one in candidates)
    assert len(set(candidates)) == len(candidates)


def load(**changed: object) -> TuneLoad:
    drawn = random.Random(3)
    trace = tuple(
        Arrival(0.5 * place, Lengths(drawn.randint(20, 900), drawn.randint(5, 60))) for place in range(60)
    )
    made = TuneLoad(trace, rate=None, rate_scale=1.0, length_scale=1.0, seconds=8.0, seed=0)
    return replace(made, **changed)  # type: ignore[arg-type]  # fields by name


def test_tuning_is_the_seeds_alone_and_no_worse_than_what_is_set_now() -> None:
    worker = WorkerSettings(model="scripted", max_sequences=4, max_batch_tokens=64)
    candidates = grid(worker, 20_000)[::30]

    def tuned() -> Tuned:
        tuner = Tuner(
            worker,
            lambda seed: device_of(CALIBRATION, seed),
            load(),
            LIMITS,
            show=show_nothing,
            candidates=candidates,
        )
        return tuner.run(None)

    first, second = tuned(), tuned()
    assert first == second
    assert first.best.goodput > first.usual.goodput, "4 places of 60 tokens are too few for this load"
    assert first.usual.candidate == current(worker)


def test_every_setting_is_tried_on_the_same_requests() -> None:
    assert load().demands(3, 2048) == load().demands(3, 2048)
    assert load().demands(3, 2048) != load().demands(4, 2048)
    assert max(demand.seconds for demand in load().demands(0, 2048)) <= 8.0
    assert max(one.prompt_tokens + one.answer_tokens for one in load().demands(0, 300)) == 300
    halved = load(length_scale=0.5, rate=2.0).demands(0, 2048)
    assert max(demand.prompt_tokens for demand in halved) <= 450


def test_a_load_without_requests_is_refused_with_what_to_do() -> None:
    with pytest.raises(UsageError, match="no request comes") as caught:
        Tuner(
            WorkerSettings(),
            lambda seed: device_of(CALIBRATION, seed),
            load(rate=1e-6),
            LIMITS,
            show=show_nothing,
        )
    assert "--duration" in str(caught.value.hint)


def test_what_to_set_can_be_pasted() -> None:
    options = replace(current(WorkerSettings()), is_timed=True).options(LIMITS)
    assert as_arguments(options) == (
        "--max-batch-tokens 512 --max-sequences 32 --block-size 16 --ttft 2s --tpot 100ms"
    )
    assert as_environment(options).startswith("HEADWAY_MAX_BATCH_TOKENS=512 ")
    assert as_environment(options).endswith("HEADWAY_TTFT=2s HEADWAY_TPOT=100ms")


def test_the_command_tunes_a_calibrated_machine_and_confirms_on_the_real_engine(tmp_path: Path) -> None:
    trace, calibration = tmp_path / "trace.csv", tmp_path / "here.json"
    rows = [f"{0.1 * place:.1f},{20 + place % 50},{3 + place % 9}" for place in range(40)]
    trace.write_text("\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]) + "\n")
    replace(CALIBRATION, kv_tokens=160).write(calibration)  # few places fit, so there is little to try
    command = ["tune", "--trace", str(trace), "--calibration", str(calibration)]
    command += ["--slo-ttft", "1s", "--slo-tpot", "100ms", "--duration", "1s", "--confirm-duration", "300ms"]
    command += ["--model", "scripted:ms_per_step=1"]
    result = CliRunner().invoke(app, [*command, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert len(figures["confirmed"]) == 2
    assert all(one["measured"]["goodput_share"] == 1.0 for one in figures["confirmed"])
    assert {"--max-batch-tokens", "--max-sequences", "--block-size"} <= figures["options"].keys()
    confirmed_for = command.index("--confirm-duration")
    del command[confirmed_for : confirmed_for + 2]
    shown = CliRunner().invoke(app, [*command, "--no-confirm"], catch_exceptions=False)
    assert "headway worker --max-batch-tokens" in shown.stdout
    assert "requests/s within the limits" in shown.stdout
