"""Whoever ends while a step ahead is under way costs one token, and nobody ever sees or hits it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.engine.asking import BANG, GREEDY, ask, run, saying, text_of, tokens_of
from tests.engine.late import Early, Late, Launched, ahead_engine, discarded, recorded
from tests.engine.stepping import TOKEN, make_scheduler, planned, request, result_of, step
from tests.simulation.preemption_world import CHEAP_SWAPS

from headway.engine.blocks import BlockLedger
from headway.engine.fair import FairPolicy
from headway.engine.limits import StepLimits
from headway.engine.memory_settings import MemorySettings
from headway.engine.policy import POLICIES, Fcfs, Priority
from headway.engine.prefix_cache import PrefixCache
from headway.engine.scheduler import Scheduler
from headway.engine.scripted import ScriptedRunner
from headway.engine.values import FinishReason, RequestKey, Sampling

A = RequestKey("a", 0)
DEVICES = pytest.mark.parametrize("thread", [Late, Early, Launched])


# -- Ends that nobody could know -------------------------------------------------------------------


@DEVICES
@pytest.mark.parametrize(
    ("sampling", "stops", "text"),
    [(BANG, (), "hi"), (GREEDY, (), "hi!!"), (GREEDY, ("!",), "hi")],
    ids=["stop-token", "eos", "stop-string"],
)
def test_a_late_stop_discards_exactly_one_token(
    sampling: Sampling, stops: tuple[str, ...], text: str, thread: type[Late]
) -> None:
    runner = saying("hi!!")
    steps = recorded(runner)
    engine = ahead_engine(runner, thread=thread)
    engine.add(replace(ask(max_tokens=9, sampling=sampling), stop_strings=stops))
    outputs = run(engine)["a"]
    assert (text_of(outputs), outputs[-1].finish_reason) == (text, FinishReason.STOP)
    assert discarded(engine) == 1
    assert len(steps) == len(tokens_of(outputs)) + 1


@DEVICES
@pytest.mark.parametrize(("steps", "lost"), [(0, 0), (1, 1), (2, 1), (7, 1)])
def test_a_cancel_discards_at_most_the_token_under_way(steps: int, lost: int, thread: type[Late]) -> None:
    """Before it started, in its prefill, while decoding, before its last token."""
    engine = ahead_engine(thread=thread)
    engine.add(ask("a", max_tokens=9))
    engine.add(ask("b", max_tokens=20))
    for _ in range(steps):
        engine.step(0.0)
    engine.cancel("a", FinishReason.CANCELLED)
    own = run(engine)["a"]
    assert (tokens_of(own), own[-1].finish_reason) == ((), FinishReason.CANCELLED)
    assert discarded(engine) == lost


@pytest.mark.parametrize(
    ("moment", "lost", "told", "cached"),
    [
        ("before the plan ahead", 1, [None], 0),
        ("while both are under way", 2, [None], 0),
        ("when the first has landed", 1, [TOKEN, None], 3),
        ("when both have landed", 0, [TOKEN, TOKEN, None], 3),
    ],
)
def test_a_cancel_in_each_phase_discards_what_is_under_way_and_publishes_none_of_it(
    moment: str, lost: int, told: list[int | None], cached: int
) -> None:
    ledger = BlockLedger(16, 2, PrefixCache(2))
    scheduler = Scheduler(ledger, StepLimits(), Fcfs(), frozenset())
    scheduler.add(request("a", prompt=6))

    def cancel_if(now: str) -> None:
        if moment == now:
            scheduler.cancel("a", FinishReason.CANCELLED)

    first = planned(scheduler)
    cancel_if("before the plan ahead")
    second = scheduler.plan_ahead(first, 0.0)
    assert (second is None) == (moment == "before the plan ahead")
    cancel_if("while both are under way")
    emissions = list(scheduler.apply(first, result_of(first), 0.0))
    cancel_if("when the first has landed")
    if second is not None:
        emissions += scheduler.apply(second, result_of(second), 0.0)
    cancel_if("when both have landed")
    emissions += step(scheduler) if scheduler.has_work else ()
    assert [emission.token_id for emission in emissions] == told
    assert emissions[-1].finish_reason is FinishReason.CANCELLED
    assert scheduler.load.extra["discarded_tokens"] == lost
    # Six tokens of prompt are three blocks: in the cache if the first result counted, and no fourth.
    assert (ledger.used_blocks, ledger.limbo_blocks, ledger.cached_blocks) == (0, 0, cached)


def test_the_kv_of_a_discarded_token_is_never_found_by_anybody() -> None:
    runner = ScriptedRunner(block_size=1, answer=lambda _: tuple(b"ab"))
    engine = ahead_engine(runner, memory=MemorySettings(has_prefix_cache=True))
    engine.add(
        ask("a", text="xyz", max_tokens=9, sampling=Sampling(temperature=0, stop_token_ids=frozenset(b"b")))
    )
    run(engine)
    assert discarded(engine) == 1
    # Prompt (4 with its first token) and the first token of the answer have KV that counts; the stop token's
    # was computed by the step ahead and dropped.
    prompt = (*ask(text="xyz").prompt_token_ids, *b"abab")
    engine.add(replace(ask("b", max_tokens=1), prompt_token_ids=prompt))
    engine.step(0.0)
    assert engine.load.extra["prefix_hit_tokens"] == 5


def test_blocks_of_a_late_stop_are_nobodys_until_the_step_ahead_has_landed() -> None:
    runner = ScriptedRunner(block_count=2, block_size=4, answer=lambda _: tuple(b"a!"))
    steps = recorded(runner)
    engine = ahead_engine(runner)
    engine.add(ask("a", text="", max_tokens=7, sampling=BANG))
    engine.add(ask("b", text="", max_tokens=7, sampling=BANG))
    run(engine)
    touched = [{chunk.key.request_id for chunk in plan.chunks} for plan in steps]
    # a stops with step 2; step 3 was under way for it, so b starts in step 4.
    assert touched == [{"a"}, {"a"}, {"a"}, {"b"}, {"b"}, {"b"}]


def test_a_block_taken_for_a_plan_that_was_given_up_waits_for_no_step() -> None:
    """The plan ahead lengthens a, then finds that a might have to give way; but a ends with the result."""
    runner = ScriptedRunner(block_count=4, block_size=1, answer=lambda _: tuple(b"x!"))
    memory = MemorySettings(is_overcommitted=True, answers_to_know=0)
    engine = ahead_engine(runner, policy=Priority(), memory=memory)
    engine.add(replace(ask("a", text="", max_tokens=3, sampling=BANG), priority=2))
    engine.step(0.0)
    engine.add(replace(ask("urgent", text="ab", max_tokens=1), priority=0))
    outputs = [output for _ in range(4) for output in engine.step(0.0)]
    ends = [output.key.request_id for output in outputs if output.finish_reason is not None]
    assert ends == ["a", "urgent"]


def test_who_is_moved_to_another_class_while_held_still_pays_for_the_step_under_way() -> None:
    engine = ahead_engine(policy=FairPolicy())
    engine.add(ask("a", max_tokens=9))
    engine.step(0.0)
    engine.hold("a")
    engine.set_priority("a", 0)
    assert len(tokens_of(engine.step(0.0))) == 1
    engine.unhold("a")
    assert len(tokens_of(run(engine)["a"])) == 7


def test_an_id_that_comes_again_is_learned_again_and_its_former_life_forgotten_once() -> None:
    runner = ScriptedRunner()
    engine = ahead_engine(runner)
    engine.add(ask("other", max_tokens=30))
    spec = ask("a", text="again", max_tokens=9)
    for _ in range(3):
        engine.add(spec)
        engine.step(0.0)
        engine.cancel("a", FinishReason.CANCELLED)
        engine.step(0.0)
    engine.add(spec)
    assert tokens_of(run(engine)["a"]) == runner.reference(spec.prompt_token_ids, GREEDY, 9)
    engine.add(ask("last", max_tokens=2))
    engine.step(0.0)
    assert runner.known_requests == 1


def test_an_id_released_again_while_a_plan_tells_its_former_release_is_told_again() -> None:
    scheduler = make_scheduler()
    scheduler.add(request("b", max_tokens=20))
    scheduler.add(request("a"))
    step(scheduler)
    scheduler.cancel("a", FinishReason.CANCELLED)
    plan = planned(scheduler)
    # Its last output is taken; its release is told by a plan that is thrown away.
    scheduler.apply(plan, replace(result_of(plan), step=0), 0.0)
    scheduler.add(request("a"))
    plan = planned(scheduler)
    assert (plan.released, [entry.key for entry in plan.admitted]) == ((A,), [A])
    scheduler.cancel("a", FinishReason.CANCELLED)
    scheduler.apply(plan, result_of(plan), 0.0)
    assert planned(scheduler).released == (A,)


# -- The field's cases -----------------------------------------------------------------------------


@DEVICES
@pytest.mark.parametrize("steps", range(1, 6))
def test_case_11_a_resubmitted_id_gets_nothing_of_the_step_under_way(steps: int, thread: type[Late]) -> None:
    runner = ScriptedRunner()
    engine = ahead_engine(runner, thread=thread)
    engine.add(ask("a", text="first", max_tokens=9))
    engine.add(ask("b", text="other", max_tokens=9))
    for _ in range(steps):
        engine.step(0.0)
    again = replace(ask("a", text="second", max_tokens=9), epoch=1)
    engine.add(again)
    outputs = run(engine)
    assert {output.key.epoch for output in outputs["a"]} == {1}
    assert tokens_of(outputs["a"]) == runner.reference(again.prompt_token_ids, GREEDY, 9)
    assert len(tokens_of(outputs["b"])) == 9 - steps


@DEVICES
def test_case_11_a_resubmitted_id_gets_nothing_of_a_prefill_under_way(thread: type[Late]) -> None:
    """Both lives stand at the beginning: only the epoch tells them apart."""
    runner = ScriptedRunner()
    engine = ahead_engine(runner, thread=thread)
    engine.add(ask("b", text="other", max_tokens=20))
    engine.step(0.0)
    engine.add(ask("a", text="first", max_tokens=9))
    engine.step(0.0)
    again = replace(ask("a", text="again", max_tokens=9), epoch=1)
    engine.add(again)
    outputs = run(engine)
    assert {output.key.epoch for output in outputs["a"]} == {1}
    assert tokens_of(outputs["a"]) == runner.reference(again.prompt_token_ids, GREEDY, 9)


@pytest.mark.parametrize("fate", ["applied", "lost", "cancelled", "stopped"])
def test_case_13_there_is_no_placeholder_that_could_be_miscounted(fate: str) -> None:
    """Whatever becomes of a plan ahead, a request knows the tokens that were committed and none besides."""
    scheduler = make_scheduler()
    for name in "ab":
        scheduler.add(request(name, max_tokens=40))
    committed = 0
    for _ in range(6):
        first = planned(scheduler)
        second = scheduler.plan_ahead(first, 0.0)
        assert second is not None
        assert answer_of_a(scheduler) == (TOKEN,) * committed
        if fate == "cancelled":
            scheduler.cancel("b", FinishReason.CANCELLED)
        scheduler.apply(first, result_of(first), 0.0)
        if fate == "stopped":
            scheduler.finish(RequestKey("b", 0))
        if fate != "lost":
            scheduler.apply(second, result_of(second), 0.0)
        scheduler.check()
        committed += 1 if fate == "lost" else 2
        assert answer_of_a(scheduler) == (TOKEN,) * committed


def answer_of_a(scheduler: Scheduler) -> tuple[int, ...]:
    known = scheduler.announce(A)
    assert known is not None
    return known.generated_token_ids


@DEVICES
@pytest.mark.parametrize("slots", [0, 8], ids=["recompute", "swap"])
@pytest.mark.parametrize("copy_delay", range(3))
@pytest.mark.parametrize("policy", ["fcfs", "priority", "fair"])
def test_case_24_looking_ahead_and_giving_way_do_not_disturb_each_other(
    slots: int, copy_delay: int, policy: str, thread: type[Late]
) -> None:
    runner = ScriptedRunner(block_count=7, block_size=2, host_slots=slots, copy_delay=copy_delay)
    memory = MemorySettings(
        is_overcommitted=True, has_prefix_cache=True, answers_to_know=0, costs=CHEAP_SWAPS
    )
    limits = StepLimits(max_sequences=4, max_step_tokens=6, min_chunk_tokens=2)
    engine = ahead_engine(runner, limits, policy=POLICIES[policy](), memory=memory, thread=thread)
    specs = [replace(ask(f"r{n}", text="abc"[: n % 4], max_tokens=8), priority=n % 3) for n in range(9)]
    for spec in specs:
        engine.add(spec)
    outputs = run(engine)
    for spec in specs:
        assert tokens_of(outputs[spec.request_id]) == runner.reference(spec.prompt_token_ids, GREEDY, 8)
    preemptions = engine.load.extra["preemptions_swap"] + engine.load.extra["preemptions_recompute"]
    assert preemptions > 0
