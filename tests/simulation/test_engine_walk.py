"""Random lives of many requests on tiny pools: every step checked, every answer compared with an oracle.

The toy model hashes the whole history out of its KV blocks, so a wrong block, a lost chunk or a block given
away too early shows as a wrong token. Letters in brackets are the field's invariants that this walk checks:
B1–B4, B9, B10, S1–S3, S5, S13–S15, O1–O4.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.engine.late import Early, Late, Launched

from headway.engine.engine import Engine
from headway.engine.errors import ContextLengthError, RequestError
from headway.engine.limits import StepLimits
from headway.engine.memory_settings import MemorySettings
from headway.engine.policy import POLICIES
from headway.engine.preemption import PreemptionCosts
from headway.engine.scripted import EOS, ByteTokenizer, ScriptedRunner
from headway.engine.values import Chunk, FinishReason, Output, RequestSpec, Sampling, StepPlan

ALPHABET = (*b"ab", *"é".encode(), EOS)
MEMORIES = (
    MemorySettings(),
    MemorySettings(has_prefix_cache=True),
    MemorySettings(is_overcommitted=True, answers_to_know=0),
    MemorySettings(
        has_prefix_cache=True,
        is_overcommitted=True,
        answers_to_know=1,
        costs=PreemptionCosts(block_bytes=1.0, out_bytes_per_second=1e12, in_bytes_per_second=1e12),
    ),
)
"""The last one swaps wherever the host has room."""
STOPS = ((), ("ab",), ("ba", "aab"), ("éa", "b"))


@dataclass
class Answer:
    """What the oracle says of one request, and what was published of it so far."""

    spec: RequestSpec
    tokens: tuple[int, ...]
    text: str
    reason: FinishReason
    published: list[int] = field(default_factory=list[int])
    shown: str = ""
    end: FinishReason | None = None
    expected_end: FinishReason | None = None
    """Set when the test ends it early: cancel, deadline or a failure."""
    is_held: bool = False


def oracle(runner: ScriptedRunner, spec: RequestSpec) -> tuple[tuple[int, ...], str, FinishReason]:
    """The whole answer by definition: tokens of the toy model, text up to the first complete stop string."""
    tokens = runner.reference(spec.prompt_token_ids, spec.sampling, spec.max_tokens)
    last_is_end = tokens[-1] == EOS and len(tokens) > spec.sampling.min_tokens
    words = [
        bytes((token,)) if token < 256 and not (last_is_end and place == len(tokens) - 1) else b""
        for place, token in enumerate(tokens)
    ]
    exempt = len(decoded(words[: spec.sampling.min_tokens]))
    for count in range(1, len(tokens) + 1):
        text = decoded(words[:count])[exempt:]
        ends = [(text.index(stop) + len(stop), -len(stop)) for stop in spec.stop_strings if stop in text]
        if ends:
            end, minus_length = min(ends)
            shown = decoded(words[:count])[: exempt + end + minus_length]
            return tokens[:count], shown, FinishReason.STOP
    return (
        tokens,
        b"".join(words).decode("utf-8", "replace"),
        (FinishReason.STOP if last_is_end else FinishReason.LENGTH),
    )


def decoded(words: Sequence[bytes]) -> str:
    return codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join(words))


class EngineWalk(RuleBasedStateMachine):
    """One engine, one runner, one clock; requests come, pause, fail, resume and go in any order."""

    @initialize(
        block_count=st.integers(3, 12),
        block_size=st.integers(1, 4),
        policy=st.sampled_from(sorted(POLICIES)),
        sequences=st.integers(1, 4),
        spare=st.integers(0, 8),
        min_chunk=st.integers(1, 5),
        passes=st.integers(1, 3),
        looks=st.integers(1, 3),
        memory=st.sampled_from(MEMORIES),
        host_slots=st.sampled_from((0, 3, 8)),
        copy_delay=st.integers(0, 2),
        device=st.sampled_from((None, Late, Early, Launched)),
        drafts=st.sampled_from((0, 1, 4)),
    )
    def make(
        self,
        *,
        block_count: int,
        block_size: int,
        policy: str,
        sequences: int,
        spare: int,
        min_chunk: int,
        passes: int,
        looks: int,
        memory: MemorySettings,
        host_slots: int,
        copy_delay: int,
        device: type[Late] | None,
        drafts: int,
    ) -> None:
        self.failing: set[str] = set()
        self.runner = ScriptedRunner(
            block_count=block_count,
            block_size=block_size,
            max_model_len=24,
            alphabet=ALPHABET,
            fails=self.fail,
            host_slots=host_slots,
            copy_delay=copy_delay,
        )
        self.runner.steps = []
        self.limits = StepLimits(
            max_step_tokens=sequences + spare,
            max_sequences=sequences,
            min_chunk_tokens=min_chunk,
            max_passes=passes,
            max_looks=looks,
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("headway.engine.engine.RunnerThread", device)
            self.engine = Engine(
                self.runner,
                ByteTokenizer(),
                limits=self.limits,
                policy=POLICIES[policy](),
                memory=memory,
                looks_ahead=device is not None,
                max_draft_tokens=drafts,
            )
        self.looks_ahead = device is not None
        self.planned_at = 0.0
        """When the plans were made that are checked now, at the earliest."""
        self.policy = policy
        self.memory = memory
        self.answers: dict[str, Answer] = {}
        self.now = 0.0
        self.count = 0

    def fail(self, chunk: Chunk) -> Exception | None:
        # With one request alone the engine could not tell a bad request from a broken device.
        return RequestError("bad request") if chunk.key.request_id in self.failing else None

    @property
    def live(self) -> list[str]:
        return sorted(name for name, answer in self.answers.items() if answer.end is None)

    # -- Requests come ----------------------------------------------------------------------------

    @rule(
        prompt=st.lists(st.sampled_from(b"xyz"), min_size=1, max_size=14),
        max_tokens=st.integers(1, 12),
        min_tokens=st.integers(0, 3),
        seed=st.integers(0, 3),
        stops=st.sampled_from(STOPS),
        priority=st.integers(0, 2),
        tenant=st.sampled_from("fg"),
        deadline=st.none() | st.integers(1, 12),
        kept=st.integers(0, 4),
    )
    def add(
        self,
        *,
        prompt: list[int],
        max_tokens: int,
        min_tokens: int,
        seed: int,
        stops: tuple[str, ...],
        priority: int,
        tenant: str,
        deadline: int | None,
        kept: int,
    ) -> None:
        self.count += 1
        spec = RequestSpec(
            request_id=f"r{self.count}",
            epoch=1,
            prompt_token_ids=tuple(prompt),
            sampling=Sampling(seed=seed, min_tokens=min(min_tokens, max_tokens)),
            max_tokens=max_tokens,
            stop_strings=stops,
            priority=priority,
            tenant=tenant,
            arrival_seconds=self.now,
            deadline_seconds=None if deadline is None else self.now + deadline,
        )
        total = len(prompt) + max_tokens
        room = min(24, self.runner.block_count * self.runner.block_size)
        if total > room:
            with pytest.raises(ContextLengthError):
                self.engine.add(spec)
            return
        self.enter(spec, kept)

    def enter(self, spec: RequestSpec, kept: int) -> None:
        """Add it as a worker does that takes over after ``kept`` tokens were committed."""
        answer = Answer(spec, *oracle(self.runner, spec))
        answer.published = list(answer.tokens[:kept])
        answer.shown = self.shown_after(answer, len(answer.published))
        self.answers[spec.request_id] = answer
        self.engine.add(replace(spec, generated_token_ids=tuple(answer.published)))

    def shown_after(self, answer: Answer, count: int) -> str:
        """What an earlier owner has shown after ``count`` tokens, by a run of its own."""
        engine = Engine(
            ScriptedRunner(max_model_len=24, alphabet=ALPHABET),
            ByteTokenizer(),
            limits=StepLimits(),
            policy=POLICIES["fcfs"](),
        )
        engine.add(replace(answer.spec, deadline_seconds=None))
        outputs: list[Output] = []
        while len(outputs) < count:
            outputs += engine.step(0.0)
        return "".join(output.text.removesuffix(output.tail) for output in outputs)

    @precondition(lambda self: self.live)
    @rule(data=st.data(), newer=st.booleans(), kept=st.booleans())
    def add_again(self, data: st.DataObject, newer: bool, kept: bool) -> None:
        name = data.draw(st.sampled_from(self.live))
        answer = self.answers[name]
        if not newer:
            with pytest.raises(RequestError):
                self.engine.add(answer.spec)
        elif answer.expected_end is None:
            spec = replace(answer.spec, epoch=answer.spec.epoch + 1)
            self.enter(spec, len(answer.published) if kept else 0)

    # -- Requests pause, fail and go ----------------------------------------------------------------

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.live))
        self.engine.cancel(name, FinishReason.CANCELLED)
        if self.answers[name].expected_end is None and not self.is_complete(self.answers[name]):
            self.answers[name].expected_end = FinishReason.CANCELLED

    def is_complete(self, answer: Answer) -> bool:
        """Added with nothing left to compute: its end is decided already."""
        return tuple(answer.published) == answer.tokens

    @rule()
    def cancel_unknown(self) -> None:
        self.engine.cancel("ghost", FinishReason.CANCELLED)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def hold(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.live))
        self.engine.hold(name)
        self.answers[name].is_held = True

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def unhold(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.live))
        self.engine.unhold(name)
        self.answers[name].is_held = False

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def break_one(self, data: st.DataObject) -> None:
        self.failing.add(data.draw(st.sampled_from(self.live)))

    @precondition(lambda self: self.live)
    @rule(data=st.data(), priority=st.integers(0, 2))
    def move(self, data: st.DataObject, priority: int) -> None:
        self.engine.set_priority(data.draw(st.sampled_from(self.live)), priority)

    @rule(tenant=st.sampled_from("fg"), weight=st.sampled_from((0.5, 1.0, 3.0)))
    def weigh(self, tenant: str, weight: float) -> None:
        self.engine.set_weight(tenant, weight)

    @rule(seconds=st.integers(0, 3))
    def step(self, seconds: int) -> None:
        self.planned_at = self.now if self.looks_ahead else self.now + seconds
        self.now += seconds
        load = self.engine.load
        outputs = self.engine.step(self.now)
        for output in outputs:
            self.publish(output)
        self.check_plans()
        # [S5, S11] Whatever runs moves on, and nobody waits for an empty pool.
        # (The dynamic baseline does, until its batch is full or has waited enough.)
        may_wait = self.policy == "dynamic"
        if load.running or (load.waiting and not load.kv_blocks_used and not may_wait):
            assert outputs or self.engine.load.steps > load.steps

    def publish(self, output: Output) -> None:
        """[O1, O2] Append-only, by the right owner, ended once."""
        answer = self.answers[output.key.request_id]
        assert answer.end is None
        assert output.key.epoch == answer.spec.epoch
        assert not (output.token_ids and answer.expected_end is not None)
        assert not (output.token_ids and answer.is_held and not self.looks_ahead)
        answer.published += output.token_ids
        answer.shown += output.text
        answer.end = output.finish_reason
        assert tuple(answer.published) == answer.tokens[: len(answer.published)]
        if output.finish_reason is not None:
            self.check_end(answer, output)

    def check_end(self, answer: Answer, output: Output) -> None:
        deadline = answer.spec.deadline_seconds
        name = answer.spec.request_id
        if output.finish_reason is FinishReason.DEADLINE:
            assert deadline is not None
            assert deadline <= self.now
        elif output.finish_reason is FinishReason.ERROR:
            assert name in self.failing
            assert output.error_message == "bad request"
        elif output.finish_reason is FinishReason.CANCELLED:
            assert answer.expected_end is FinishReason.CANCELLED
        else:
            assert output.finish_reason == answer.reason
            assert tuple(answer.published) == answer.tokens
            assert answer.shown == answer.text

    # -- What must hold after every operation ---------------------------------------------------------

    def check_plans(self) -> None:
        assert self.runner.steps is not None
        for plan in self.runner.steps:
            self.check_plan(plan)
        self.runner.steps.clear()

    def check_plan(self, plan: StepPlan) -> None:
        """[S1, B3, B4, S13] Within the limits; no slot twice; nothing past its deadline."""
        assert plan.new_tokens <= self.limits.max_step_tokens
        assert plan.new_tokens > 0 or plan.has_copies or plan.awaits_copies
        assert len(plan.chunks) <= self.limits.max_sequences
        slots = [
            (chunk.block_table[position // self.runner.block_size], position % self.runner.block_size)
            for chunk in plan.chunks
            for position in range(chunk.start, chunk.start + len(chunk.token_ids))
        ]
        assert len(slots) == len(set(slots))
        if not self.memory.has_prefix_cache:
            blocks = [block for chunk in plan.chunks for block in chunk.block_table]
            assert len(blocks) == len(set(blocks))
        for chunk in plan.chunks:
            end = chunk.start + len(chunk.token_ids)
            assert len(chunk.block_table) >= -(-end // self.runner.block_size)
            deadline = self.answers[chunk.key.request_id].spec.deadline_seconds
            assert deadline is None or self.planned_at < deadline

    @invariant()
    def books_balance(self) -> None:
        """[B1, B2, S2, S3]"""
        self.engine.check_books()
        load = self.engine.load
        assert load.running + load.waiting + load.held <= len(self.live)
        assert 0 <= load.kv_blocks_used <= load.kv_blocks_total

    def teardown(self) -> None:
        """[S5, B1, B9, O2] Let everyone go on: all end, each once, and every block comes back."""
        if not hasattr(self, "engine"):
            return
        self.failing.clear()
        for name in self.live:
            self.unhold_one(name)
        for _ in range(60 * (1 + len(self.answers))):
            if not self.engine.has_work:
                break
            self.planned_at = self.now
            self.now += 0.05 * (self.policy == "dynamic")
            for output in self.engine.step(self.now):
                self.publish(output)
            self.check_plans()
            self.engine.check_books()
        assert self.live == []
        assert self.engine.load.kv_blocks_used == 0
        assert (self.engine.has_work, self.engine.has_runnable) == (False, False)

    def unhold_one(self, name: str) -> None:
        self.engine.unhold(name)
        self.answers[name].is_held = False


TestEngineWalk = EngineWalk.TestCase
TestEngineWalk.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
