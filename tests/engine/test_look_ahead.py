"""One step ahead: the same answers, nothing speculated that is known, and no choice without its result."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.engine.asking import GREEDY, ask, make_engine, run, tokens_of
from tests.engine.late import Early, Late, Launched, ahead_engine, discarded, recorded

from headway.engine.engine import Engine
from headway.engine.errors import InvariantError
from headway.engine.limits import StepLimits
from headway.engine.memory_settings import MemorySettings
from headway.engine.policy import Fcfs, Priority
from headway.engine.scripted import ByteTokenizer, ScriptedRunner
from headway.engine.values import PLACEHOLDER, FinishReason, Output, Sampling, StepPlan

DEVICES = pytest.mark.parametrize("thread", [Late, Early, Launched])


def names(plan: StepPlan) -> list[str]:
    return [chunk.key.request_id for chunk in plan.chunks]


# -- The same answers ------------------------------------------------------------------------------


@DEVICES
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(seed=7), Sampling(seed=7, logprobs=2, min_tokens=3)])
def test_answers_are_those_of_an_engine_that_does_not_look_ahead(
    sampling: Sampling, thread: type[Late]
) -> None:
    limits = StepLimits(max_step_tokens=8, max_sequences=3, min_chunk_tokens=2)
    plain, ahead = make_engine(limits=limits), ahead_engine(limits=limits, thread=thread)
    for engine in (plain, ahead):
        for place in range(7):
            spec = ask(f"r{place}", text="x" * (3 * place + 1), max_tokens=3 + 3 * place, sampling=sampling)
            engine.add(spec)
    assert run(ahead) == run(plain)


def test_while_a_step_runs_the_next_is_planned_and_starts_before_the_first_is_told() -> None:
    runner = ScriptedRunner()
    steps = recorded(runner)
    engine = ahead_engine(runner, thread=Early)
    engine.add(ask(max_tokens=4))
    for count in (2, 3, 4, 4):
        assert len(tokens_of(engine.step(0.0))) == 1
        assert len(steps) == count
    assert [chunk.token_ids for plan in steps[1:] for chunk in plan.chunks] == [(PLACEHOLDER,)] * 3
    assert not engine.has_work


def test_chunks_of_one_prompt_follow_each_other_without_a_pause() -> None:
    runner = ScriptedRunner()
    steps = recorded(runner)
    engine = ahead_engine(runner, StepLimits(max_step_tokens=4, max_sequences=4, min_chunk_tokens=4))
    spec = ask(text="twelve chars", max_tokens=2)
    engine.add(spec)
    assert tokens_of(run(engine)["a"]) == runner.reference(spec.prompt_token_ids, GREEDY, 2)
    assert [(chunk.start, len(chunk.token_ids)) for plan in steps for chunk in plan.chunks] == [
        (0, 4),
        (4, 4),
        (8, 4),
        (12, 1),
        (13, 1),
    ]


def test_the_runner_hears_of_each_request_once_although_plans_overlap() -> None:
    runner = ScriptedRunner()
    steps = recorded(runner)
    engine = ahead_engine(runner)
    for name in "ab":
        engine.add(ask(name, max_tokens=3))
    run(engine)
    engine.add(ask("c", max_tokens=2))
    run(engine)
    assert [entry.key.request_id for plan in steps for entry in plan.admitted] == ["a", "b", "c"]
    assert sorted(key.request_id for plan in steps for key in plan.released) == ["a", "b"]
    assert runner.known_requests == 1


# -- What is known is not speculated ---------------------------------------------------------------


def test_an_answer_that_reaches_its_length_is_not_in_the_step_ahead() -> None:
    engine = ahead_engine()
    engine.add(ask("short", max_tokens=3))
    engine.add(ask("long", max_tokens=9))
    run(engine)
    assert discarded(engine) == 0


def test_a_request_that_waits_takes_the_place_of_one_that_is_known_to_end() -> None:
    runner = ScriptedRunner()
    steps = recorded(runner)
    engine = ahead_engine(runner, StepLimits(max_sequences=1))
    engine.add(ask("a", max_tokens=2))
    engine.add(ask("b", max_tokens=2))
    run(engine)
    assert [names(plan) for plan in steps] == [["a"], ["a"], ["b"], ["b"]]


def test_a_held_request_is_not_in_the_step_ahead() -> None:
    engine = ahead_engine()
    engine.add(ask("a", max_tokens=9))
    engine.add(ask("b", max_tokens=3))
    engine.step(0.0)
    engine.hold("a")
    # What was under way still comes; then nothing more.
    outputs = [output for _ in range(4) for output in engine.step(0.0)]
    assert len(tokens_of([output for output in outputs if output.key.request_id == "a"])) == 1
    engine.unhold("a")
    assert len(tokens_of(run(engine)["a"])) == 7


def test_past_its_deadline_a_request_is_in_no_step_and_gets_no_token() -> None:
    engine = ahead_engine(ScriptedRunner(cost=lambda _: 1.0))
    engine.add(replace(ask("a", max_tokens=50), deadline_seconds=3.5))
    engine.add(ask("b", max_tokens=8))
    outputs: list[Output] = []
    now = 0.0
    while engine.has_work:
        outputs += engine.step(now)
        now += 1.0
    own = [output for output in outputs if output.key.request_id == "a"]
    assert own[-1].finish_reason is FinishReason.DEADLINE
    assert len(tokens_of(own)) == 4
    # The end was foreseen: the step that would have passed it was not planned ahead.
    assert discarded(engine) == 0


# -- Where the result is needed, the pipeline drains -----------------------------------------------


def test_a_duplicate_waits_for_what_the_step_under_way_computes() -> None:
    runner = ScriptedRunner(block_size=4)
    steps = recorded(runner)
    engine = ahead_engine(
        runner, StepLimits(max_step_tokens=64), memory=MemorySettings(has_prefix_cache=True)
    )
    engine.add(ask("a", text="a prompt of some length", max_tokens=6))
    engine.add(ask("b", text="a prompt of some length", max_tokens=6))
    outputs = run(engine)
    assert tokens_of(outputs["a"]) == tokens_of(outputs["b"])
    computed = sum(
        len(chunk.token_ids) for plan in steps for chunk in plan.chunks if chunk.key.request_id == "b"
    )
    assert computed < 10


def test_a_better_class_displaces_at_the_next_result_although_steps_are_planned_ahead() -> None:
    runner = ScriptedRunner()
    steps = recorded(runner)
    engine = ahead_engine(runner, StepLimits(max_sequences=1), policy=Priority())
    engine.add(replace(ask("low", max_tokens=20), priority=2))
    engine.step(0.0)
    engine.add(replace(ask("high", max_tokens=2), priority=0))
    outputs = run(engine)
    order = [name for plan in steps for name in names(plan)]
    assert order.index("high") <= 3
    assert len(tokens_of(outputs["low"])) == 19


# -- The real thread -------------------------------------------------------------------------------


def test_with_a_real_thread_answers_are_the_same_and_closing_ends_it() -> None:
    runner = ScriptedRunner()
    engine = Engine(runner, ByteTokenizer(), limits=StepLimits(), policy=Fcfs(), looks_ahead=True)
    for place in range(20):
        engine.add(ask(f"r{place}", text="y" * place, max_tokens=12))
    outputs = run(engine)
    for place in range(20):
        prompt = ask(text="y" * place).prompt_token_ids
        assert tokens_of(outputs[f"r{place}"]) == runner.reference(prompt, GREEDY, 12)
    engine.close()


def test_closing_in_the_middle_of_an_answer_does_not_hang() -> None:
    engine = Engine(ScriptedRunner(), ByteTokenizer(), limits=StepLimits(), policy=Fcfs(), looks_ahead=True)
    engine.add(ask(max_tokens=50))
    engine.step(0.0)
    engine.close()


def test_what_the_runner_raises_on_its_thread_is_raised_by_step() -> None:
    runner = ScriptedRunner(fails=lambda _: InvariantError("slot 7 written twice"))
    engine = Engine(runner, ByteTokenizer(), limits=StepLimits(), policy=Fcfs(), looks_ahead=True)
    engine.add(ask())
    with pytest.raises(InvariantError, match="slot 7"):
        engine.step(0.0)
    engine.close()
