"""A profile accounts for all of the time, whoever is asked: an engine here, or a live worker's metrics."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from itertools import count

import pytest
from typer.testing import CliRunner

from headway.engine.engine import Engine
from headway.engine.limits import StepLimits
from headway.engine.policy import POLICIES
from headway.engine.scripted import ByteTokenizer, ScriptedRunner
from headway.engine.step_profile import Part, StepProfile
from headway.engine.values import ComputeTimes, RequestSpec, Sampling, StepPlan, StepResult
from headway.services.cli import app
from headway.services.engine_thread import EngineThread
from headway.services.errors import NotReachableError, ServiceError, UsageError
from headway.services.metrics import WorkerMetrics
from headway.services.profile import (
    GEMM,
    IDLE,
    OVERHEAD,
    THREAD,
    Budget,
    Reading,
    as_json,
    as_lines,
    between,
    parse_metrics,
    read_profile,
    read_worker,
)
from headway.services.profile_run import DECODE_STEPS, LEAST_CONTEXT, DecodeShape, ProfileRun, RunShape
from headway.services.worker_http import WorkerHttp

URL = "http://127.0.0.1:9100"


class Ticks:
    """A clock that goes on by what it is told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class TimedRunner(ScriptedRunner):
    """Every step takes 10 s: 6 in the model, of which 3 in products, and 1 to sample."""

    def __init__(self, ticks: Ticks) -> None:
        super().__init__()
        self._ticks = ticks

    def execute(self, plan: StepPlan) -> StepResult:
        result = super().execute(plan)
        self._ticks.now += 10.0
        times = ComputeTimes(model=6.0, sampling=1.0, products=3.0, head=1.0, attention=1.5)
        return StepResult(result.step, result.sampled, 10.0, times=times)


def engine_of(runner: ScriptedRunner, ticks: Ticks | None = None) -> Engine:
    limits = StepLimits(max_step_tokens=512, max_sequences=8)
    return Engine(runner, ByteTokenizer(), limits=limits, policy=POLICIES["fair"](), clock=ticks)


def spec(name: str, tokens: int = 4) -> RequestSpec:
    return RequestSpec(name, 0, tuple(range(40)), Sampling(temperature=0.0), tokens)


def test_an_engines_parts_are_what_its_runner_told_and_what_is_left() -> None:
    ticks = Ticks()
    engine = engine_of(TimedRunner(ticks), ticks)
    engine.add(spec("a", 3))
    while engine.has_work:
        engine.step(ticks())
    profile = engine.profile
    assert (profile.steps, profile.tokens) == (3, 3)
    expected = {
        Part.PRODUCTS: 9.0,
        Part.HEAD: 3.0,
        Part.ATTENTION: 4.5,
        Part.MODEL: 1.5,
        Part.SAMPLING: 3.0,
        Part.RUNNER: 9.0,
        Part.SCHEDULING: 0.0,
        Part.DETOKENIZE: 0.0,
    }
    assert profile.seconds == pytest.approx(expected)


def test_planning_and_text_are_timed_apart() -> None:
    ticks = count(0.0, 1.0)
    profile = StepProfile(lambda: next(ticks))
    profile.begin()
    profile.lap(Part.SCHEDULING)
    profile.computed(StepResult(1, (), 0.5))
    profile.lap(Part.DETOKENIZE)
    spent = {part: seconds for part, seconds in profile.seconds.items() if seconds}
    assert spent == {Part.SCHEDULING: 1.0, Part.RUNNER: 1.0, Part.DETOKENIZE: 1.0}


def test_what_passed_beside_the_planning_is_not_counted_twice() -> None:
    moments = iter((0.0, 2.0))
    profile = StepProfile(lambda: next(moments))
    profile.begin()
    profile.computed(StepResult(1, (), 8.0, times=ComputeTimes(model=6.0, sampling=2.0, products=3.0)))
    assert sum(profile.seconds.values()) == pytest.approx(2.0)
    assert profile.seconds[Part.PRODUCTS] == pytest.approx(0.75)


def test_without_a_clock_steps_and_tokens_are_counted_all_the_same() -> None:
    engine = engine_of(ScriptedRunner())
    engine.add(spec("a", 3))
    while engine.has_work:
        engine.step(0.0)
    assert (engine.profile.steps, engine.profile.tokens) == (3, 3)


def test_the_parts_of_a_budget_add_up_to_the_time_between_two_readings() -> None:
    before = Reading(10.0, 5, 50, {"products": 1.0, IDLE: 2.0}, 0.5, 3, 0.1)
    budget = between(before, Reading(20.0, 15, 90, {"products": 5.0, IDLE: 4.0}, 1.5, 8, 0.6))
    assert budget.seconds == pytest.approx({"products": 4.0, IDLE: 2.0, THREAD: 4.0})
    assert sum(budget.seconds.values()) == pytest.approx(budget.wall_seconds)
    assert (budget.steps, budget.tokens, budget.publishes) == (10, 40, 5)
    assert budget.per_step_ms("products") == pytest.approx(400.0)
    assert budget.share("products") == pytest.approx(0.5)  # of what was not idle


def test_products_and_all_around_the_pass_are_told_together() -> None:
    seconds = {part.value: 0.0 for part in Part} | {THREAD: 0.5, IDLE: 10.0}
    seconds |= {Part.PRODUCTS: 6.0, Part.HEAD: 1.0, Part.ATTENTION: 1.0, Part.MODEL: 0.5}
    seconds |= {Part.SAMPLING: 0.1, Part.RUNNER: 0.2, Part.SCHEDULING: 0.3, Part.DETOKENIZE: 0.4}
    budget = Budget(20.0, 100, 100, seconds)
    assert budget.share(GEMM) == pytest.approx(0.7)
    assert budget.share(OVERHEAD) == pytest.approx(0.15)
    assert budget.per_step_ms(OVERHEAD) == pytest.approx(15.0)
    assert as_json(budget)["shares"] == {GEMM: 0.7, OVERHEAD: 0.15}
    text = "\n".join(as_lines(budget))
    assert "70.0%  products, head" in text
    assert "15.0%  sampling, runner, scheduling, detokenize, thread" in text


def test_no_share_of_products_is_told_where_the_model_tells_none() -> None:
    budget = Budget(2.0, 10, 10, {part.value: 0.1 for part in Part} | {Part.PRODUCTS: 0.0, THREAD: 1.2})
    assert as_json(budget)["shares"] == {}
    assert "together" not in "\n".join(as_lines(budget))


def test_a_worker_that_began_anew_is_told() -> None:
    later = Reading(10.0, 5, 50, {})
    with pytest.raises(ServiceError, match="started again"):
        between(later, Reading(20.0, 2, 5, {}))


def test_a_worker_with_nothing_to_do_is_told() -> None:
    same = Reading(0.0, 5, 50, {IDLE: 1.0})
    budget = between(same, Reading(2.0, 5, 50, {IDLE: 3.0}))
    assert as_lines(budget) == ["no step in 2.0 s: the worker had nothing to do"]


def page() -> bytes:
    metrics = WorkerMetrics("w-1", "tiny")
    seconds = {"products": 4.5, "attention": 1.25}
    metrics.observe_profile(seconds, steps=7, tokens=70, idle_seconds=2.5, loop_cpu_seconds=0.75)
    metrics.published(0.25)
    return metrics.render()


def test_a_workers_metrics_are_read_as_they_were_set() -> None:
    reading = parse_metrics(page().decode(), 3.0, URL)
    assert reading == Reading(3.0, 7, 70, {"products": 4.5, "attention": 1.25, IDLE: 2.5}, 0.25, 1, 0.75)


@pytest.mark.parametrize("text", ["", "python_info 1.0\n"])
def test_metrics_of_others_are_no_profile(text: str) -> None:
    with pytest.raises(ServiceError, match="tells no times of steps"):
        parse_metrics(text, 0.0, URL)


def test_a_wrong_url_or_nobody_there_is_told_with_what_to_type() -> None:
    with pytest.raises(UsageError) as wrong:
        read_worker("ftp://somewhere", 0.0)
    assert "headway profile" in (wrong.value.hint or "")
    with pytest.raises(NotReachableError, match="nobody answers"):
        read_worker("http://127.0.0.1:9", 0.0)


async def test_a_live_workers_page_is_read() -> None:
    http = WorkerHttp(page, lambda: (True, "ok"), lambda: (True, "ok"))
    port = await http.start("127.0.0.1", 0)
    try:
        reading = await asyncio.to_thread(read_worker, f"127.0.0.1:{port}", 1.0)
    finally:
        await http.close()
    assert (reading.steps, reading.tokens) == (7, 70)


def test_a_sleep_under_way_counts_as_idle() -> None:
    clock = Ticks()
    thread = EngineThread(
        engine_of(ScriptedRunner()),
        notify=lambda: None,
        observe_step=lambda _: None,
        clock=clock,
        unacknowledged_tokens=64,
    )
    thread.start()
    assert thread.idle_seconds() == 0.0
    while thread._asleep[1] is None:
        time.sleep(0.001)
    clock.now += 5.0
    assert thread.idle_seconds() == pytest.approx(5.0)
    assert thread.stop(10.0)
    clock.now += 3.0
    assert thread.idle_seconds() == pytest.approx(5.0)


@pytest.fixture
def shapes() -> Iterator[RunShape]:
    return iter((RunShape(3, 7, prompt_tokens=20, answer_tokens=5), RunShape(1, 2, 20, 5)))


def test_a_run_answers_everything_and_accounts_for_its_time(shapes: Iterator[RunShape]) -> None:
    run = ProfileRun(engine_of(ScriptedRunner()), ByteTokenizer.vocab_size)
    for shape in shapes:
        budget = run.run(shape)
        assert budget.tokens == shape.requests * shape.answer_tokens
        assert sum(budget.seconds.values()) == pytest.approx(budget.wall_seconds)


@pytest.mark.parametrize("sequences", [1, 8])
@pytest.mark.parametrize("context", [LEAST_CONTEXT, 100])
def test_decodes_alone_are_steps_of_one_token_for_each_at_the_context_asked_for(
    sequences: int, context: int
) -> None:
    runner = ScriptedRunner()
    runner.steps = []
    engine = engine_of(runner)
    run = ProfileRun(engine, ByteTokenizer.vocab_size)
    budget = run.decode(DecodeShape(sequences, context))
    assert budget.steps == DECODE_STEPS
    assert budget.tokens == sequences * DECODE_STEPS
    decodes = [plan for plan in runner.steps if len(plan.chunks) == sequences][-DECODE_STEPS:]
    assert all(len(chunk.token_ids) == 1 for plan in decodes for chunk in plan.chunks)
    contexts = [chunk.start + 1 for plan in decodes for chunk in plan.chunks]
    assert budget.context_tokens == sum(contexts) / len(contexts) == context - 0.5
    assert not engine.has_work
    engine.check_books()


def test_decodes_that_look_ahead_are_counted_alike() -> None:
    limits = StepLimits(max_step_tokens=512, max_sequences=8)
    engine = Engine(
        ScriptedRunner(), ByteTokenizer(), limits=limits, policy=POLICIES["fair"](), looks_ahead=True
    )
    budget = ProfileRun(engine, ByteTokenizer.vocab_size).decode(DecodeShape(8, 60))
    engine.close()
    assert (budget.steps, budget.tokens) == (DECODE_STEPS, 8 * DECODE_STEPS)
    assert budget.context_tokens == pytest.approx(60, abs=1.5)


def test_decodes_that_the_kv_cache_does_not_hold_are_refused() -> None:
    engine = engine_of(ScriptedRunner(block_count=20))
    run = ProfileRun(engine, ByteTokenizer.vocab_size)
    with pytest.raises(ServiceError) as told:
        run.decode(DecodeShape(8, 100))
    assert "fewer --sequences" in (told.value.hint or "")
    assert not engine.has_work
    assert run.decode(DecodeShape(2, 60)).tokens == 2 * DECODE_STEPS


def test_profile_runs_an_engine_here_and_prints_a_budget_for_each_count() -> None:
    toy = "scripted:ms_per_step=0,blocks=256"
    said = CliRunner().invoke(app, ["profile", "--model", toy, "--sequences", "2,1", "--json"])
    assert said.exit_code == 0, said.output
    one, two = (json.loads(line) for line in said.stdout.splitlines())
    assert (one["sequences"], two["sequences"]) == (1, 2)
    assert two["tokens"] == 2 * 2 * 94
    assert two["seconds"]["runner"] > 0.0
    shown = CliRunner().invoke(app, ["profile", "--model", toy, "--sequences", "2"])
    assert "scheduling" in shown.stdout
    assert "tokens/s" in shown.stdout


def test_profile_of_decodes_alone_says_at_which_context() -> None:
    toy = ["profile", "--model", "scripted:ms_per_step=0,blocks=256", "--sequences", "4", "--decode-only"]
    said = CliRunner().invoke(app, [*toy, "--context", "40", "--json"])
    assert said.exit_code == 0, said.output
    told = json.loads(said.stdout)
    assert (told["sequences"], told["context_tokens"], told["steps"]) == (4, 39.5, DECODE_STEPS)
    shown = CliRunner().invoke(app, toy)
    assert "decodes only, at a context of 224.5 tokens" in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--context", "100"], "--context would be ignored"),
        (["--seconds", "3"], "--seconds would be ignored"),
        (["--decode-only", "--context", "5000"], "context holds"),
        (["http://127.0.0.1:9", "--decode-only"], "--decode-only would be ignored"),
        (["http://127.0.0.1:9", "--sequences", "4"], "--sequences would be ignored"),
        (["http://127.0.0.1:9", "--no-tune-kernels"], "--tune-kernels would be ignored"),
    ],
)
def test_options_that_would_say_nothing_are_refused(arguments: list[str], words: str) -> None:
    model = [] if arguments[0].startswith("http") else ["--model", "scripted:ms_per_step=0"]
    said = CliRunner().invoke(app, ["profile", *arguments, *model])
    assert isinstance(said.exception, UsageError)
    assert words in str(said.exception)


def test_a_worker_that_the_environment_names_is_named_with_the_way_out() -> None:
    told = {"HEADWAY_METRICS_URL": "http://127.0.0.1:9"}
    said = CliRunner(env=told).invoke(app, ["profile", "--decode-only"])
    assert isinstance(said.exception, UsageError)
    assert "http://127.0.0.1:9" in str(said.exception)
    assert "unset HEADWAY_METRICS_URL" in (said.exception.hint or "")


@pytest.mark.parametrize("text", ["", "0", "x", "1,5000"])
def test_a_wrong_number_of_sequences_is_refused(text: str) -> None:
    said = CliRunner().invoke(app, ["profile", "--model", "scripted", "--sequences", text])
    assert isinstance(said.exception, UsageError)


def test_readings_of_an_engine_carry_every_part() -> None:
    reading = read_profile(StepProfile(), 1.0)
    assert set(reading.seconds) == {part.value for part in Part}
