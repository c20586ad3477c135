"""The whole engine on the device against torch's on the CPU: logits of a mixed step, then tokens of many
requests, in graphs and out of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from gpu_checks.engine_results import EngineCheck
from gpu_checks.engine_runs import Answers, answers_of
from gpu_checks.form_checks import check_eight_bits, check_fixed_order
from gpu_checks.random_model import RandomCheckpoint
from gpu_checks.rerun_graphs import graphs_of
from torch import Tensor

from headway.engine.fused_loading import GpuSettings, load_fused_runner
from headway.engine.fused_runner import FusedRunner
from headway.engine.kv_cache import KVCache
from headway.engine.linear import Linear
from headway.engine.model_config import ModelConfig
from headway.engine.rope import rotary_tables
from headway.engine.scaled_linear import STORED, ScaledKind, rounded
from headway.engine.torch_model import TorchModel
from headway.engine.torch_runner import TorchRunner
from headway.engine.torch_weights import load_weights
from headway.engine.values import Admitted, Chunk, RequestKey, RequestSpec, Sampling, StepPlan
from headway.kernels.host_arrays import float_list

BLOCK = 16
CPU = torch.device("cpu")
Logits = Callable[[TorchRunner | FusedRunner], Tensor]

LENGTHS = (40, 90, 37)
"""Tokens of two prompts, and of what the second goes on with."""
TINY_LENGTHS = (18, 35, 15)
"""Where kernels are interpreted: still several blocks and several tiles."""

PLAIN, LAUNCHED = GpuSettings(), GpuSettings(has_graphs=False)
FORMS: tuple[ScaledKind, ...] = ("int8", "fp8")


def check_engine(
    config: ModelConfig, device: torch.device, *, requests: int, longest: int
) -> list[EngineCheck]:
    """Logits in float32, bfloat16 and forms of one byte, sums in fixed order, and answers in float32.

    ``longest``: prompt, in tokens.
    """
    torch.manual_seed(0)
    logits = partial(_logits, config=config, lengths=TINY_LENGTHS if device == CPU else LENGTHS)
    exact = logits(_on_cpu(config, "float32"))
    naive = logits(_on_cpu(config, "bfloat16"))
    return [
        _close(logits(_on_device(config, device, "float32", LAUNCHED)), exact),
        _no_worse(logits(_on_device(config, device, "bfloat16", LAUNCHED)), naive, exact),
        *(_with_rounded_weights(config, device, form, logits) for form in FORMS),
        *check_eight_bits(
            lambda gpu, dtype: _on_device(config, device, dtype, gpu),
            logits,
            exact,
            is_tiny=device == CPU,
        ),
        *check_fixed_order(
            lambda gpu, dtype: _on_device(config, device, dtype, gpu),
            min(config.vocab_size, 256),
            is_tiny=device == CPU,
        ),
        *_same_answers(config, device, requests, longest),
    ]


def _on_cpu(config: ModelConfig, dtype: str) -> TorchRunner:
    return TorchRunner.load(
        RandomCheckpoint(config, CPU),
        kv_cache_bytes=_kv_bytes(config),
        dtype=dtype,
        block_size=BLOCK,
        max_model_len=1024,
    )


def _on_device(
    config: ModelConfig, device: torch.device, dtype: str, gpu: GpuSettings = PLAIN
) -> FusedRunner:
    # Nothing is compiled or recorded beforehand: ``service_checks`` does that, once.
    return load_fused_runner(
        RandomCheckpoint(config, CPU),
        kv_cache_bytes=_kv_bytes(config),
        dtype=dtype,
        device=str(device),
        block_size=BLOCK,
        max_model_len=1024,
        gpu=replace(gpu, max_sequences=0),
        graphs=graphs_of(device),
    )


def _kv_bytes(config: ModelConfig) -> int:
    return 2 * config.layer_count * config.kv_head_count * config.head_dim * 4 * 4096


def _logits(
    runner: TorchRunner | FusedRunner, *, config: ModelConfig, lengths: tuple[int, int, int]
) -> Tensor:
    """Of all tokens of two prompts and, in a second step, of more of one beside a decode of the other."""
    short, long, rest = lengths
    keys = [RequestKey(f"logits-{index}", 0) for index in range(2)]
    tables = tuple(range(3)), tuple(range(3, 12))
    rng = random.Random(1)
    first, second = (tuple(rng.randrange(config.vocab_size) for _ in range(n)) for n in (short, long))
    more = tuple(rng.randrange(config.vocab_size) for _ in range(rest))
    steps = [
        (Chunk(keys[0], 0, first, tables[0], False), Chunk(keys[1], 0, second, tables[1], False)),
        (Chunk(keys[0], short, (7,), tables[0], True), Chunk(keys[1], long, more, tables[1], True)),
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


def _with_rounded_weights(
    config: ModelConfig, device: torch.device, form: ScaledKind, logits: Logits
) -> EngineCheck:
    """Against weights rounded alike in torch: the product is checked, not what rounding costs."""
    exact = logits(_on_rounded(config, form, torch.float32))
    naive = logits(_on_rounded(config, form, torch.bfloat16))
    ours = logits(_on_device(config, device, "bfloat16", GpuSettings(form, has_graphs=False)))
    check = _no_worse(ours, naive, exact)
    return replace(check, promise=f"{check.promise}, with {form} weights")


def _on_rounded(config: ModelConfig, form: ScaledKind, dtype: torch.dtype) -> TorchRunner:
    def make(weight: Tensor, bias: Tensor | None) -> Linear:
        values, scales = rounded(weight, STORED[form])
        return Linear((values.float() * scales.unsqueeze(1)).to(dtype), bias)

    with torch.inference_mode():
        # As the device has them: rounded to bfloat16 before they are rounded to a byte.
        weights = load_weights(RoundedCheckpoint(config, CPU), dtype, CPU, make_product=make)
        tables = rotary_tables(config.rope, config.head_dim, 1024, dtype, CPU)
        cache = KVCache(config, block_count=64, block_size=BLOCK, dtype=dtype, device=CPU)
    model = TorchModel(config, weights, tables)
    return TorchRunner(
        config, model, cache, dtype=dtype, device=CPU, max_model_len=1024, clock=time.perf_counter
    )


class RoundedCheckpoint(RandomCheckpoint):
    """The same weights in bfloat16."""

    def tensor(self, name: str) -> Tensor:
        """float32 numbers that bfloat16 holds."""
        return super().tensor(name).bfloat16().float()


def _same_answers(
    config: ModelConfig, device: torch.device, requests: int, longest: int
) -> Iterator[EngineCheck]:
    wanted = _specs(requests, min(config.vocab_size, 256), longest)
    cpu = _on_cpu(config, "float32")
    expected = answers_of(cpu, wanted)
    for gpu, looks_ahead, how in (
        (PLAIN, True, "from graphs, launched ahead"),
        (LAUNCHED, False, "launch by launch"),
    ):
        ours = answers_of(_on_device(config, device, "float32", gpu), wanted, looks_ahead=looks_ahead)
        different = [spec for spec in wanted if ours[spec.request_id] != expected[spec.request_id]]
        problems = [problem for spec in different if (problem := _problem(cpu, spec, ours, expected))]
        # A draw near the border of two tokens may fall either way, once in a while.
        if (
            all(spec.request_id.startswith("drawn") for spec in different)
            and len(different) <= requests // 16
        ):
            problems = []
        yield EngineCheck(
            f"greedy and seeded answers equal the CPU's, up to ties: {how}",
            tuple(problems),
            f"{requests - len(different)} of {requests} equal",
        )


def _specs(requests: int, vocab: int, longest: int) -> list[RequestSpec]:
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
            tuple(rng.randrange(vocab) for _ in range(rng.randint(1, longest))),
            samplings[index % 4],
            rng.randint(4, 4 + longest // 5),
        )
        for index in range(requests)
    ]


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
