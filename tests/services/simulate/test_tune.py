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
from headway.services.tune import Confirmed, Tuned, TuneLoad, Tuner, choose
from headway.services.tune_report import as_json, as_lines
from headway.services.tune_search import REPLICATES, Score, Tried, ranked, search
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


def test_lengths_that_shall_fit_are_shortened_all_alike_and_none_is_cut() -> None:
    made = load(length_scale=None, seconds=1000.0)
    longest = max(sum((row.lengths.prompt_tokens, row.lengths.answer_tokens)) for row in made.trace)
    assert made.scale(longest // 2) == pytest.approx(0.5, rel=0.01)
    assert made.scale(2 * longest) == 1.0
    whole, halved = (made.demands(0, tokens) for tokens in (longest, longest // 2))
    for before, after in zip(whole, halved, strict=True):
        assert after.prompt_tokens == pytest.approx(before.prompt_tokens / 2, abs=1)
        assert after.answer_tokens == pytest.approx(before.answer_tokens / 2, abs=1)


@pytest.mark.parametrize(
    ("made", "confirm_seconds", "words", "hint"),
    [
        (load(rate=1e-6), None, "no request comes in one of the loads", "--duration"),
        # All loads have requests, and the first has its first one after some seconds.
        (load(rate=0.5, seconds=60.0), 1e-6, "no request comes in the first 1e-06 s", "--confirm-duration"),
    ],
)
def test_a_load_without_requests_is_refused_before_the_search_with_what_to_do(
    made: TuneLoad, confirm_seconds: float | None, words: str, hint: str
) -> None:
    shown: list[str] = []
    tuner = Tuner(
        WorkerSettings(), lambda seed: device_of(CALIBRATION, seed), made, LIMITS, show=shown.append
    )
    with pytest.raises(UsageError, match=words) as caught:
        tuner.run(confirm_seconds)
    assert hint in str(caught.value.hint)
    assert shown == []


def confirmed(sequences: int, predicted: float, measured: float) -> Confirmed:
    candidate = replace(current(WorkerSettings()), max_sequences=sequences)
    before, after = (
        {"goodput_per_second": goodput, "ttft_p99": 0.5, "requests": 150} for goodput in (predicted, measured)
    )
    return Confirmed(candidate, before, after, seconds=30.0)


@pytest.mark.parametrize(
    ("goodputs", "chosen"),
    [
        ((2.00, 2.08), 0),  # 4 % apart: one run cannot tell, and the first was predicted better
        ((2.00, 2.20), 1),
        ((2.20, 2.00), 0),
        ((0.0, 0.0), 0),
    ],
)
def test_of_settings_that_one_run_cannot_tell_apart_the_better_predicted_is_taken(
    goodputs: tuple[float, float], chosen: int
) -> None:
    tried = [confirmed(8 << place, 3.0 - place, goodput) for place, goodput in enumerate(goodputs)]
    assert choose(tried) is tried[chosen]


def tuned_to(predicted: float, measured: float | None) -> Tuned:
    """An outcome of one setting, which eight simulated loads promise 4.5 requests a second."""
    proof = confirmed(8, predicted, measured or 0.0)
    best = Tried(proof.candidate, [Score(4.4, 0.3), Score(4.6, 0.3)] * 4)
    return Tuned(best, best, [best], [] if measured is None else [proof], 1, 5.0, 1.0)


def test_what_to_expect_is_what_was_measured_beside_what_was_predicted_of_the_same() -> None:
    (told,) = (line for line in as_lines(tuned_to(4.0, 3.5), LIMITS, "here") if "expect" in line)
    assert "expect 3.50 requests/s" in told
    assert "as measured in 30 s in which 5.00 came" in told
    assert "predicted of the same requests: 4.00" in told
    expected = as_json(tuned_to(4.0, 3.5), LIMITS, "here")["expected"]
    assert (expected["goodput_per_second"], expected["by"]) == (3.5, "measurement")
    assert not expected["is_far_off"]


@pytest.mark.parametrize(
    ("measured", "warns"), [(3.3, None), (4.7, None), (3.0, "25% less"), (5.0, "25% more")]
)
def test_a_prediction_that_was_off_by_more_than_a_fifth_is_warned_of(
    measured: float, warns: str | None
) -> None:
    tuned = tuned_to(4.0, measured)
    told = [line for line in as_lines(tuned, LIMITS, "here") if line.startswith("WARNING")]
    assert len(told) == (warns is not None)
    assert (warns or "") in "".join(told)
    assert as_json(tuned, LIMITS, "here")["expected"]["is_far_off"] == (warns is not None)


@pytest.mark.parametrize(("offered", "is_told"), [(8.5, False), (9.5, True)])
def test_a_load_beyond_every_setting_is_called_so(offered: float, is_told: bool) -> None:
    tuned = replace(tuned_to(4.0, 4.0), offered=offered)
    assert any("even half of this load" in line for line in as_lines(tuned, LIMITS, "here")) == is_told


@pytest.mark.parametrize(("share", "is_told"), [(1.0, True), (0.9, False)])
def test_that_all_of_a_load_is_served_is_said_only_where_it_was(share: float, is_told: bool) -> None:
    tuned = replace(tuned_to(4.0, 4.0), offered=4.5)
    tuned.confirmed[0].measured["goodput_share"] = share
    assert any("All of this load" in line for line in as_lines(tuned, LIMITS, "here")) == is_told


def test_what_was_never_run_is_called_a_simulation() -> None:
    (told,) = (line for line in as_lines(tuned_to(4.0, None), LIMITS, "here") if "expect" in line)
    assert "expect 4.50 ± 0.09 requests/s within the limits, by simulation alone" in told
    assert as_json(tuned_to(4.0, None), LIMITS, "here")["expected"]["by"] == "simulation"


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
    assert figures["expected"]["by"] == "measurement"
    assert figures["expected"]["goodput_per_second"] in {
        one["measured"]["goodput_per_second"] for one in figures["confirmed"]
    }
    assert {"--max-batch-tokens", "--max-sequences", "--block-size"} <= figures["options"].keys()
    confirmed_for = command.index("--confirm-duration")
    del command[confirmed_for : confirmed_for + 2]
    # The longest row has 70 tokens, and the KV cache 160: all fit as they are.
    command += ["--length-scale", "fit"]
    shown = CliRunner().invoke(app, [*command, "--no-confirm"], catch_exceptions=False)
    assert "headway worker --max-batch-tokens" in shown.stdout
    assert "requests/s within the limits" in shown.stdout


def test_the_command_refuses_a_load_without_requests_before_the_minute_of_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,20,3\n1,20,3\n")

    def measured(*_: object) -> Calibration:
        raise AssertionError("it was measured")

    monkeypatch.setattr("headway.services.calibrate.calibrate", measured)
    command = ["tune", "--trace", str(trace), "--slo-ttft", "1s", "--slo-tpot", "100ms", "--rate", "0.00001"]
    with pytest.raises(UsageError, match="no request comes"):
        CliRunner().invoke(app, [*command, "--model", "scripted"], catch_exceptions=False)
