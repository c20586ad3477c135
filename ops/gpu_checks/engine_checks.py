"""The whole engine on the device against the CPU's: logits of a mixed step, then tokens of many requests."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import torch
from gpu_checks.random_model import AnyVocabulary, RandomCheckpoint
from torch import Tensor

from headway.engine.engine import Engine
from headway.engine.limits import StepLimits
from headway.engine.model_config import ModelConfig
from headway.engine.policy import POLICIES
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import Admitted, Chunk, RequestKey, RequestSpec, Sampling, StepPlan
from headway.kernels.host_arrays import float_list

BLOCK = 16
CPU = torch.device("cpu")
Answers = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class EngineCheck:
    """One promise about the engine."""

    promise: str
    problems: tuple[str, ...]
    detail: str


def check_engine(config: ModelConfig, device: torch.device, *, requests: int) -> list[EngineCheck]:
    """Logits in float32 and bfloat16, and answers in float32, on ``device`` against the CPU."""
    torch.manual_seed(0)
    exact = _logits(config, CPU, "float32")
    return [
        _close(_logits(config, device, "float32"), exact),
        _no_worse(_logits(config, device, "bfloat16"), _logits(config, CPU, "bfloat16"), exact),
        _same_answers(config, device, requests),
    ]


def _runner(config: ModelConfig, device: torch.device, dtype: str) -> TorchRunner:
    per_token = 2 * config.layer_count * config.kv_head_count * config.head_dim * 4
    return TorchRunner.load(
        RandomCheckpoint(config, CPU),
        kv_cache_bytes=per_token * 4096,
        dtype=dtype,
        device=str(device),
        block_size=BLOCK,
        max_model_len=1024,
    )


def _logits(config: ModelConfig, device: torch.device, dtype: str) -> Tensor:
    """Of all tokens of two prompts and, in a second step, of more of one beside a decode of the other."""
    runner = _runner(config, device, dtype)
    keys = [RequestKey(f"logits-{index}", 0) for index in range(2)]
    tables = tuple(range(3)), tuple(range(3, 12))
    rng = random.Random(1)
    first, second = (tuple(rng.randrange(config.vocab_size) for _ in range(n)) for n in (40, 90))
    more = tuple(rng.randrange(config.vocab_size) for _ in range(37))
    steps = [
        (Chunk(keys[0], 0, first, tables[0], False), Chunk(keys[1], 0, second, tables[1], False)),
        (Chunk(keys[0], 40, (7,), tables[0], True), Chunk(keys[1], 90, more, tables[1], True)),
    ]
    admitted = tuple(
        Admitted(key, tokens, (), Sampling())
        for key, tokens in zip(keys, (first, second + more), strict=True)
    )
    parts = [
        runner.logits(StepPlan(step, chunks, admitted=admitted if step == 0 else ())).float().cpu()
        for step, chunks in enumerate(steps)
    ]
    return torch.cat(parts)


def _close(ours: Tensor, exact: Tensor) -> EngineCheck:
    gap, size = float((ours - exact).abs().max()), float(exact.abs().max())
    problems = () if gap <= 1e-4 * size else (f"logits are off by {gap:.3g}, the largest is {size:.3g}",)
    return EngineCheck("float32 logits equal the CPU's to 1e-4", problems, f"{gap / size:.2e} of the largest")


def _no_worse(ours: Tensor, cpu: Tensor, exact: Tensor) -> EngineCheck:
    error, naive = (float((each - exact).abs().mean()) for each in (ours, cpu))
    problems = () if error <= 2 * naive else (f"mean error {error:.3g}, the CPU's {naive:.3g}",)
    detail = f"mean error {error:.2e}, the CPU's {naive:.2e}"
    return EngineCheck("bfloat16 logits are at most twice as wrong as the CPU's", problems, detail)


def _same_answers(config: ModelConfig, device: torch.device, requests: int) -> EngineCheck:
    wanted = _specs(requests, min(config.vocab_size, 256))
    cpu = _runner(config, CPU, "float32")
    expected, ours = _run(cpu, wanted), _run(_runner(config, device, "float32"), wanted)
    different = [spec for spec in wanted if ours[spec.request_id] != expected[spec.request_id]]
    problems = [problem for spec in different if (problem := _problem(cpu, spec, ours, expected))]
    # A draw near the border of two tokens may fall either way, once in a while.
    if all(spec.request_id.startswith("drawn") for spec in different) and len(different) <= requests // 16:
        problems = []
    detail = f"{requests - len(different)} of {requests} equal"
    return EngineCheck("greedy and seeded answers equal the CPU's, up to ties", tuple(problems), detail)


def _specs(requests: int, vocab: int) -> list[RequestSpec]:
    rng = random.Random(2)
    samplings = [
        Sampling(temperature=0.0, ignore_eos=True),
        Sampling(temperature=0.9, top_p=0.9, seed=5, ignore_eos=True),
        Sampling(temperature=1.1, top_k=20, repetition_penalty=1.2, seed=-6, ignore_eos=True, logprobs=2),
        Sampling(temperature=0.0, frequency_penalty=0.5, ignore_eos=True),
    ]
    names = ("greedy", "drawn", "drawn-penalised", "penalised")
    return [
        RequestSpec(
            f"{names[index % 4]}-{index}",
            0,
            tuple(rng.randrange(vocab) for _ in range(rng.randint(1, 90))),
            samplings[index % 4],
            rng.randint(4, 24),
        )
        for index in range(requests)
    ]


def _run(runner: TorchRunner, wanted: list[RequestSpec]) -> Answers:
    """Chunked prefills and decodes mixed in every step."""
    engine = Engine(
        runner,
        AnyVocabulary(),
        limits=StepLimits(max_step_tokens=64, max_sequences=8, min_chunk_tokens=8),
        policy=POLICIES["fcfs"](),
    )
    answers: dict[str, list[int]] = {spec.request_id: [] for spec in wanted}
    for spec in wanted:
        engine.add(spec)
    while engine.has_work:
        for output in engine.step(time.perf_counter()):
            answers[output.key.request_id] += output.token_ids
    engine.check_books()
    return {name: tuple(tokens) for name, tokens in answers.items()}


def _problem(cpu: TorchRunner, spec: RequestSpec, ours: Answers, expected: Answers) -> str:
    """Where an answer differs; empty for a greedy one at a tie of the CPU's logits."""
    right = expected[spec.request_id]
    pairs = enumerate(zip(ours[spec.request_id], right, strict=True))
    at = next(index for index, (mine, wanted) in pairs if mine != wanted)
    tokens = spec.prompt_token_ids + right[:at]
    key, table = RequestKey(f"margin-{spec.request_id}", 0), tuple(range(-(-len(tokens) // BLOCK)))
    plan = StepPlan(
        0, (Chunk(key, 0, tokens, table, True),), admitted=(Admitted(key, tokens, (), Sampling()),)
    )
    logits = float_list(cpu.logits(plan)[-1].float())
    margin = abs(logits[right[at]] - logits[ours[spec.request_id][at]])
    is_tie = spec.request_id.startswith("greedy") and margin < 1e-3
    return "" if is_tie else f"{spec.request_id} differs at token {at}, where logits differ by {margin:.3g}"
