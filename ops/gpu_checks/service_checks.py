"""What a service asks of a device beside plain steps: graphs, guesses, forms, and too little memory."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from gpu_checks.absent_grammars import is_installed
from gpu_checks.engine_results import EngineCheck
from gpu_checks.engine_runs import Answers, answers_of
from gpu_checks.random_model import AnyVocabulary, RandomCheckpoint
from gpu_checks.rerun_graphs import graphs_of

from headway.engine.fused_loading import GpuSettings, load_fused_runner
from headway.engine.fused_runner import FusedRunner
from headway.engine.grammar_source import regex_source
from headway.engine.kv_cache import block_bytes
from headway.engine.limits import StepLimits
from headway.engine.memory_settings import MemorySettings
from headway.engine.model_config import ModelConfig
from headway.engine.preemption import Mode, PreemptionCosts, PreemptionLimits
from headway.engine.step_graphs import MIXED_MEETINGS
from headway.engine.values import Admitted, Chunk, RequestKey, RequestSpec, Sampling, StepPlan

CPU = torch.device("cpu")
GREEDY = Sampling(temperature=0.0, ignore_eos=True)
EVEN_COSTS = PreemptionCosts(1.0, 1e9, 1e9)
"""Swapping is what is asked for, whatever it costs."""
FORM = "[A-Z]{2}-[0-9]{2}(x|yz)?"
TINY_FORM = "a(b|c)"


@dataclass(frozen=True, slots=True)
class Work:
    """How much is asked."""

    dtype: str
    block: int
    requests: int
    prompt_tokens: int
    answer_tokens: int
    expects: int
    """Requests whose decodes are recorded before any step."""

    @property
    def pressed_blocks(self) -> int:
        """All prompts and a token of each fit, and one block more: somebody has to give way."""
        return 1 + self.requests * -(-(self.prompt_tokens + 1) // self.block)


WORK = Work("bfloat16", 16, 8, 40, 48, expects=8)
TINY_WORK = Work("float32", 4, 2, 6, 4, expects=0)
"""Where kernels are interpreted, at 10 ms for each program."""


def check_service(config: ModelConfig, device: torch.device, *, is_tiny: bool) -> Iterator[EngineCheck]:
    """On a GPU with sums in fixed order, so that answers must be equal in every bit."""
    work = TINY_WORK if is_tiny else WORK
    started = time.perf_counter()
    roomy = _load(config, device, work, blocks=160)
    if work.expects:
        yield _decodes(roomy, work, time.perf_counter() - started)
    yield _mixed(roomy, work)
    if is_tiny:
        roomy = _load(config, device, work, blocks=160, has_graphs=False)
    yield _guesses(roomy, work)
    specs = _specs(work)
    expected = answers_of(roomy, specs, limits=_limits(work), looks_ahead=not is_tiny)
    if is_installed():
        yield _forms(roomy, work, specs, expected, TINY_FORM if is_tiny else FORM)
    pressed = _load(
        config,
        device,
        work,
        blocks=work.pressed_blocks,
        host_blocks=2 * work.pressed_blocks,
        has_graphs=not is_tiny,
    )
    yield _swaps(pressed, work, specs, expected, looks_ahead=not is_tiny)


def _load(
    config: ModelConfig,
    device: torch.device,
    work: Work,
    *,
    blocks: int,
    host_blocks: int = 0,
    has_graphs: bool = True,
) -> FusedRunner:
    block = block_bytes(config, work.block, getattr(torch, work.dtype))
    return load_fused_runner(
        RandomCheckpoint(config, CPU),
        kv_cache_bytes=blocks * block,
        host_cache_bytes=host_blocks * block,
        dtype=work.dtype,
        device=str(device),
        block_size=work.block,
        gpu=GpuSettings(
            max_sequences=work.expects, is_deterministic=bool(work.expects), has_graphs=has_graphs
        ),
        graphs=graphs_of(device),
    )


def _limits(work: Work) -> StepLimits:
    return StepLimits(
        max_step_tokens=64, max_sequences=work.requests, min_chunk_tokens=8, max_step_seconds=1e6
    )


def _specs(work: Work) -> list[RequestSpec]:
    seeded = Sampling(temperature=0.9, top_p=0.95, seed=3, ignore_eos=True)
    return [
        RequestSpec(f"r{i}", 0, _prompt(i, work), seeded if i % 2 else GREEDY, work.answer_tokens)
        for i in range(work.requests)
    ]


def _prompt(place: int, work: Work) -> tuple[int, ...]:
    return tuple((7919 * at + 31 * place) % 250 for at in range(work.prompt_tokens))


def _decodes(runner: FusedRunner, work: Work, load_seconds: float) -> EngineCheck:
    """Over contexts of all lengths: what was recorded while the model was loaded is enough."""
    before = runner.graph_count
    for rows in range(1, work.expects + 1):
        for context in {1, 200, 300, 1000, runner.max_model_len}:
            keys = [RequestKey(f"decode-{row}", 0) for row in range(rows)]
            table = tuple(range(-(-context // work.block)))
            chunks = tuple(Chunk(key, context - 1, (5,), table, samples=True) for key in keys)
            admitted = tuple(Admitted(key, (5,) * context, (), GREEDY) for key in keys)
            runner.execute(StepPlan(0, chunks, admitted))
            runner.execute(StepPlan(1, (), released=tuple(keys)))
    more = runner.graph_count - before
    problems = (f"{more} more were recorded",) if more else () if before else ("none was recorded",)
    promise = "every decode is replayed from a graph that was recorded while the model was loaded"
    return EngineCheck(promise, problems, f"{before} graphs, loaded in {load_seconds:.1f} s")


def _mixed(runner: FusedRunner, work: Work) -> EngineCheck:
    """A small step of a decode and a chunk, as often as it takes to be recorded; it samples on a GPU only."""
    samples = bool(work.expects)
    keys, prompt = [RequestKey(f"mixed-{i}", 0) for i in range(2)], _prompt(0, work)
    room = -(-work.prompt_tokens // work.block)
    chunks = (
        Chunk(keys[0], 3, (7,), (0,), samples),
        Chunk(keys[1], 0, prompt, tuple(range(1, 1 + room)), samples),
    )
    admitted = (Admitted(keys[0], (7,) * 4, (), GREEDY), Admitted(keys[1], prompt, (), GREEDY))
    before = runner.graph_count
    told = [runner.execute(StepPlan(0, chunks, admitted)).sampled]
    told += [runner.execute(StepPlan(0, chunks)).sampled for _ in range(MIXED_MEETINGS + 1)]
    runner.execute(StepPlan(1, (), released=tuple(keys)))
    more = runner.graph_count - before
    problems = () if more == 1 else (f"{more} graphs were recorded",)
    if any(sampled != told[0] for sampled in told):
        problems = (*problems, "its replay chose other tokens")
    return EngineCheck("a small mixed step is replayed from a graph", problems, f"{len(told)} times")


def _guesses(runner: FusedRunner, work: Work) -> EngineCheck:
    """Right ones are kept, and behind a wrong one comes what plain decoding says."""
    plain = _decoded(runner, work, "plain", ())
    problems: list[str] = []
    for right in (work.answer_tokens - 2, 1):
        guesses = list(plain[1:-1])
        if right < len(guesses):
            guesses[right] = (guesses[right] + 1) % 250
        told = _decoded(runner, work, f"guessed-{right}", tuple(guesses))
        if told != plain[: len(told)] or len(told) != min(right, len(guesses)) + 2:
            problems.append(f"{right} right ones of {len(guesses)} gave {told}, plain decoding {plain}")
    return EngineCheck(
        "right guesses are kept, and none changes a token", tuple(problems), f"{len(plain)} tokens"
    )


def _decoded(runner: FusedRunner, work: Work, name: str, guesses: tuple[int, ...]) -> list[int]:
    """One answer: token by token, or its first two steps with all guesses in the second."""
    key, prompt = RequestKey(name, 0), _prompt(1, work)
    table = tuple(range(-(-(work.prompt_tokens + work.answer_tokens) // work.block)))
    first = StepPlan(0, (Chunk(key, 0, prompt, table, samples=True),), (Admitted(key, prompt, (), GREEDY),))
    told = [entry.token_id for entry in runner.execute(first).sampled]
    for _ in range(1 if guesses else work.answer_tokens - 1):
        start = work.prompt_tokens + len(told) - 1
        chunk = Chunk(key, start, (told[-1], *guesses), table, samples=True, draft_tokens=len(guesses))
        told += [entry.token_id for entry in runner.execute(StepPlan(1, (chunk,))).sampled]
    runner.execute(StepPlan(2, (), released=(key,)))
    return told


def _forms(
    runner: FusedRunner, work: Work, specs: Sequence[RequestSpec], expected: Answers, form: str
) -> EngineCheck:
    """Constrained answers beside free ones: those have their form, and these are as without them."""
    source = regex_source(form)
    held = [
        replace(
            spec, request_id=f"held-{i}", sampling=replace(spec.sampling, grammar=source, ignore_eos=False)
        )
        for i, spec in enumerate(specs[: len(specs) // 2])
    ]
    free = specs[len(held) :]
    told = answers_of(runner, [*held, *free], limits=_limits(work), looks_ahead=bool(work.expects))
    vocabulary = AnyVocabulary()
    texts = [b"".join(map(vocabulary.token_bytes, told[spec.request_id])).decode() for spec in held]
    problems = [f"{text!r} is no {form}" for text in texts if not re.fullmatch(form, text)]
    problems += [f"{s.request_id} is another" for s in free if told[s.request_id] != expected[s.request_id]]
    promise = "constrained answers have their form, and leave those beside them as they are"
    return EngineCheck(promise, tuple(problems), ", ".join(texts))


def _swaps(
    runner: FusedRunner, work: Work, specs: Sequence[RequestSpec], expected: Answers, *, looks_ahead: bool
) -> EngineCheck:
    """In memory for the prompts alone: requests go to host memory and come back, beside the steps."""
    counts: dict[str, float] = {}
    told = answers_of(
        runner,
        specs,
        limits=replace(_limits(work), is_overcommitted=True),
        looks_ahead=looks_ahead,
        memory=MemorySettings(
            is_overcommitted=True,
            answers_to_know=0,  # they are expected to stay short, so too many are admitted
            costs=EVEN_COSTS,
            preemption=PreemptionLimits(headroom_tokens=0, watermark=0.0, only=Mode.SWAP),
        ),
        counts=counts,
    )
    problems = [f"{name} is another" for name, tokens in expected.items() if told[name] != tokens]
    swaps = int(counts["preemptions_swap"])
    if not swaps:
        problems.append("nobody gave way")
    return EngineCheck(
        "who gives way to host memory and comes back says the same tokens",
        tuple(problems),
        f"{swaps} swaps, {counts['swap_real_seconds'] * 1e3:.1f} ms",
    )
