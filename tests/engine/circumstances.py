"""The same requests under other circumstances: company, arrivals, chunks, preemption, another worker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headway.engine.engine import Engine
from headway.engine.interfaces import Runner, Tokenizer
from headway.engine.limits import StepLimits
from headway.engine.memory_settings import MemorySettings
from headway.engine.policy import Fcfs
from headway.engine.preemption import Mode, PreemptionCosts, PreemptionLimits
from headway.engine.values import RequestSpec

Entry = tuple[int, float | None]
"""A token, and its log-probability where it was asked for."""

EVEN_COSTS = PreemptionCosts(1.0, 1e9, 1e9)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What no answer may depend on."""

    sequences: int = 1
    """Requests in a step."""
    step_tokens: int = 512
    """Chunks are no longer than this."""
    steps_apart: int = 0
    """A request arrives so many steps after the one before it."""
    gives_way: Mode | None = None
    """How requests give way; None: nobody has to."""
    looks_ahead: bool = False
    draft_tokens: int = 0
    """Most tokens guessed of a request in one step."""
    is_reversed: bool = False
    """Whether the last request comes first."""


@dataclass(slots=True)
class Told:
    """What was said, by request, and how often somebody gave way."""

    answers: dict[str, list[Entry]] = field(default_factory=dict[str, list[Entry]])
    preemptions: dict[Mode, int] = field(default_factory=dict[Mode, int])


def tell(runner: Runner, tokenizer: Tokenizer, specs: Sequence[RequestSpec], under: Circumstances) -> Told:
    """Answer all requests by a real engine."""
    engine = _engine(runner, tokenizer, under)
    waiting = list(reversed(specs)) if under.is_reversed else list(specs)
    told, steps = Told({spec.request_id: [] for spec in specs}), 0
    while waiting or engine.has_work:
        while waiting and (not engine.has_work or steps >= under.steps_apart):
            engine.add(waiting.pop(0))
            steps = 0
            if under.steps_apart:
                break
        steps += 1
        for output in engine.step(0.0):
            logprobs: list[float | None] = [one.chosen[2] for one in output.logprobs]
            logprobs = logprobs or [None] * len(output.token_ids)
            told.answers[output.key.request_id] += list(zip(output.token_ids, logprobs, strict=True))
            assert output.finish_reason != "error", output.error_message
    engine.check_books()
    engine.close()
    told.preemptions = {mode: int(engine.load.extra[f"preemptions_{mode}"]) for mode in Mode}
    return told


def resumed(spec: RequestSpec, answer: Sequence[Entry], kept: int) -> RequestSpec:
    """The request as its next owner gets it, ``kept`` tokens into its answer."""
    return replace(spec, epoch=spec.epoch + 1, generated_token_ids=tuple(token for token, _ in answer[:kept]))


def _engine(runner: Runner, tokenizer: Tokenizer, under: Circumstances) -> Engine:
    limits = StepLimits(
        max_step_tokens=max(under.step_tokens, under.sequences),
        max_sequences=under.sequences,
        min_chunk_tokens=min(8, under.step_tokens),
        max_step_seconds=1e6,
        is_overcommitted=under.gives_way is not None,
    )
    memory = MemorySettings(
        has_prefix_cache=True,
        is_overcommitted=under.gives_way is not None,
        # Answers are expected to stay short, so too many are admitted.
        answers_to_know=0,
        costs=EVEN_COSTS,
        preemption=PreemptionLimits(headroom_tokens=0, watermark=0.0, only=under.gives_way),
    )
    return Engine(
        runner,
        tokenizer,
        limits=limits,
        policy=Fcfs(),
        memory=memory,
        looks_ahead=under.looks_ahead,
        max_draft_tokens=under.draft_tokens,
    )
