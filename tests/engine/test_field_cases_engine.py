"""What users of other engines ran into, as tests of the whole engine; numbers as in ``field_cases.md``."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import replace

import pytest
from tests.engine.asking import TOKENIZER, ask, run

from headway.engine.engine import Engine
from headway.engine.fair import FairPolicy
from headway.engine.limits import StepLimits
from headway.engine.memory_settings import MemorySettings
from headway.engine.preemption import PreemptionCosts
from headway.engine.scripted import ScriptedRunner
from headway.engine.timeline import Timeline
from headway.engine.values import FinishReason, Output, Sampling

CHEAP_SWAPS = PreemptionCosts(block_bytes=1.0, out_bytes_per_second=1e12, in_bytes_per_second=1e12)


def test_case_6_weighted_shares_show_in_what_tenants_read() -> None:
    engine = Engine(
        ScriptedRunner(block_count=1024),
        TOKENIZER,
        limits=StepLimits(max_step_tokens=64, max_sequences=8),
        policy=FairPolicy(weights={"free": 1.0, "gold": 3.0}, quantum_tokens=0.0),
    )
    live: Counter[str] = Counter()
    read: Counter[str] = Counter()
    names = itertools.count()
    for _ in range(1500):
        for tenant in ("free", "gold"):
            while live[tenant] < 16:
                engine.add(replace(ask(f"{tenant}#{next(names)}", "hello", 12), tenant=tenant))
                live[tenant] += 1
        for output in engine.step(0.0):
            tenant = output.key.request_id.partition("#")[0]
            read[tenant] += len(output.token_ids)
            live[tenant] -= output.finish_reason is not None
    assert read["gold"] / read["free"] == pytest.approx(3.0, rel=0.05)


def containers(thing: object, path: str, seen: set[int]) -> Iterator[tuple[str, int]]:
    """The size of every dict, list, set and deque that is ours, rings excepted."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, dict | list | set | deque):
        yield path, len(thing)
    elif type(thing).__module__.startswith("headway.") and not isinstance(thing, Timeline):
        slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        for name in sorted({*getattr(thing, "__dict__", {}), *slots}):
            if hasattr(thing, name):
                yield from containers(getattr(thing, name), f"{path}.{name}", seen)


def test_case_30_what_was_cancelled_leaves_nothing_that_grows() -> None:
    memory = MemorySettings(has_prefix_cache=True, is_overcommitted=True, answers_to_know=1)
    engine = Engine(ScriptedRunner(), TOKENIZER, limits=StepLimits(), policy=FairPolicy(), memory=memory)

    def cancel_many(start: int) -> dict[str, int]:
        for place in range(start, start + 300):
            engine.add(ask(f"r{place}", max_tokens=3))
            if place % 2:
                engine.step(0.0)
            for name in (f"r{place}", f"r{place}", f"ghost{place}", f"r{place - 7}"):
                engine.cancel(name, FinishReason.CANCELLED)
                engine.hold(name)
                engine.unhold(name)
                engine.set_priority(name, 2)
        run(engine)
        engine.add(ask("last", "hello", 2))  # what the runner has to forget is told with a step
        run(engine)
        return dict(containers(engine, "engine", set()))

    before = cancel_many(0)
    assert len(before) > 15
    assert cancel_many(1000) == before


SAMPLINGS = (
    Sampling(temperature=0, logprobs=2),
    Sampling(temperature=1.0, seed=3, logprobs=0, min_tokens=2, ignore_eos=True),
    Sampling(temperature=0),
)


@pytest.mark.parametrize("host_slots", [0, 6], ids=["recompute", "swap"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["logprobs", "seeded", "plain"])
@pytest.mark.parametrize("stops", [(), ("ab", "ba")], ids=["", "stops"])
def test_case_31_options_combine_with_cancels_under_memory_pressure(
    host_slots: int, sampling: Sampling, stops: tuple[str, ...]
) -> None:
    preemptions = 0.0
    for cancelled_at, held_at in itertools.product(range(1, 12), (3, 99)):
        runner = ScriptedRunner(
            block_count=8, block_size=2, host_slots=host_slots, alphabet=(*b"abc",), max_model_len=16
        )
        memory = MemorySettings(
            has_prefix_cache=True, is_overcommitted=True, answers_to_know=0, costs=CHEAP_SWAPS
        )
        engine = Engine(runner, TOKENIZER, limits=StepLimits(), policy=FairPolicy(), memory=memory)
        for place in range(5):
            spec = ask(f"r{place}", "xyz"[: 1 + place % 3], 9, sampling)
            engine.add(replace(spec, stop_strings=stops, priority=place % 2))
        outputs: dict[str, list[Output]] = {}
        for step in range(200):
            if step == cancelled_at:
                engine.cancel("r1", FinishReason.CANCELLED)
            if step == held_at:
                engine.hold("r2")
            if step == held_at + 3:
                engine.unhold("r2")
            for output in engine.step(0.0):
                outputs.setdefault(output.key.request_id, []).append(output)
            engine.check_books()
        assert sorted(outputs) == [f"r{place}" for place in range(5)]
        for said in outputs.values():
            check_answer(said, sampling)
        assert not engine.has_work
        assert engine.load.kv_blocks_used == 0
        preemptions += engine.load.extra["preemptions_swap" if host_slots else "preemptions_recompute"]
    assert preemptions > 0


def check_answer(said: list[Output], sampling: Sampling) -> None:
    """[O2, O6] One end, the last; as many logprobs as tokens in each output."""
    assert [output.finish_reason is None for output in said] == [True] * (len(said) - 1) + [False]
    for output in said:
        assert len(output.logprobs) == (0 if sampling.logprobs is None else len(output.token_ids))
