"""``deterministic``: an answer has the same bits under all circumstances, or the runner refuses to load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from tests.engine.circumstances import Circumstances, Entry, resumed, tell
from tests.engine.test_torch_runner import CONFIG, MIX, RandomCheckpoint
from tests.native_kernels import CACHE_DIR, native_library

from headway.engine.answer import Answer
from headway.engine.cpu_kernels import Computation, CpuSettings, Quantization
from headway.engine.deterministic import RowByRowSampler, check_deterministic
from headway.engine.errors import ModelError
from headway.engine.kv_cache import block_bytes
from headway.engine.model_config import ModelConfig
from headway.engine.preemption import Mode
from headway.engine.sampler import SamplingRow
from headway.engine.scripted import ByteTokenizer
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import Admitted, RequestKey, RequestSpec, Sampling

MODEL = replace(
    CONFIG, vocab_size=ByteTokenizer.vocab_size, max_position=256, hidden_size=64, intermediate_size=96
)
WINDOW = replace(MODEL, sliding_window=37, head_dim=20)
ANSWER_TOKENS = 40
AMPLE, SHORT = 400, 44
"""Blocks of the pool."""
FORMS: list[tuple[str, Quantization]] = [("bfloat16", "none"), ("bfloat16", "int8"), ("float32", "none")]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors: on shared cores, more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def runner_of(
    config: ModelConfig, dtype: str, quantization: Quantization, blocks: int = AMPLE, threads: int = 1
) -> TorchRunner:
    native_library()
    size = block_bytes(config, 4, torch.float32 if dtype == "float32" else torch.bfloat16)
    return TorchRunner.load(
        RandomCheckpoint(config),
        dtype=dtype,
        kv_cache_bytes=blocks * size,
        host_cache_bytes=AMPLE * size,
        block_size=4,
        threads=threads,
        cpu=CpuSettings("auto", quantization, CACHE_DIR, keeps_weights=False),
        is_deterministic=True,
    )


def requests(count: int = 12) -> list[RequestSpec]:
    """Prompts of 3 to 80 tokens, some with a common beginning; greedy and every kind of draw."""
    beginning = tuple(range(40, 72))
    specs: list[RequestSpec] = []
    for place in range(count):
        own = tuple((31 * place + 17 * i * i) % 250 for i in range(3 + 7 * place))
        sampling = replace(MIX[place % len(MIX)], seed=place, ignore_eos=True, logit_bias=((65, 0.5),))
        prompt = beginning + own[:9] if place % 4 == 3 else own
        specs.append(RequestSpec(f"r{place}", 0, prompt, sampling, ANSWER_TOKENS))
    return specs


@cache
def alone(config: ModelConfig, dtype: str, quantization: Quantization) -> dict[str, list[Entry]]:
    return tell(runner_of(config, dtype, quantization), ByteTokenizer(), requests(), Circumstances()).answers


def told(
    config: ModelConfig, dtype: str, quantization: Quantization, under: Circumstances, **runner: Any
) -> dict[str, list[Entry]]:
    result = tell(runner_of(config, dtype, quantization, **runner), ByteTokenizer(), requests(), under)
    if under.gives_way is not None:
        assert result.preemptions[under.gives_way] > 3
    return result.answers


@pytest.mark.parametrize(("dtype", "quantization"), FORMS)
@pytest.mark.parametrize("config", [MODEL, WINDOW], ids=["llama", "window"])
@pytest.mark.parametrize(
    "under",
    [
        Circumstances(sequences=2),
        Circumstances(sequences=5, steps_apart=3),
        Circumstances(sequences=12, steps_apart=1, is_reversed=True, looks_ahead=True),
        Circumstances(sequences=4, step_tokens=5, steps_apart=2),
        Circumstances(sequences=6, step_tokens=13),
        Circumstances(sequences=12, step_tokens=64),
    ],
    ids=["pairs", "staggered", "backwards, look-ahead", "chunks of 5", "chunks of 13", "chunks of 64"],
)
def test_answers_are_the_same_bits_in_any_company_and_any_chunks(
    config: ModelConfig, dtype: str, quantization: Quantization, under: Circumstances
) -> None:
    assert told(config, dtype, quantization, under) == alone(config, dtype, quantization)


@pytest.mark.parametrize(("dtype", "quantization"), FORMS)
@pytest.mark.parametrize("mode", list(Mode))
def test_who_gave_way_says_the_same_bits_as_undisturbed(
    dtype: str, quantization: Quantization, mode: Mode
) -> None:
    under = Circumstances(sequences=10, step_tokens=24, gives_way=mode)
    disturbed = told(MODEL, dtype, quantization, under, blocks=SHORT)
    assert disturbed == alone(MODEL, dtype, quantization)


@pytest.mark.parametrize(("dtype", "quantization"), FORMS)
def test_another_worker_with_other_threads_goes_on_with_the_same_bits(
    dtype: str, quantization: Quantization
) -> None:
    whole = alone(MODEL, dtype, quantization)
    kept = {spec.request_id: 3 * place + 1 for place, spec in enumerate(requests())}
    specs = [resumed(spec, whole[spec.request_id], kept[spec.request_id]) for spec in requests()]
    other = runner_of(MODEL, dtype, quantization, threads=3)
    rest = tell(other, ByteTokenizer(), specs, Circumstances(sequences=7, step_tokens=19)).answers
    assert rest == {name: answer[kept[name] :] for name, answer in whole.items()}
    assert other.kernels == runner_of(MODEL, dtype, quantization).kernels, "the marks are equal"


def test_the_mark_tells_workers_apart_that_compute_differently() -> None:
    marks = {runner_of(MODEL, *form).kernels.rpartition(" ")[2] for form in FORMS}
    marks.add(runner_of(WINDOW, *FORMS[0]).kernels.rpartition(" ")[2])
    assert len(marks) == 4
    assert all(len(mark) == 12 for mark in marks)


# -- Sampling ----------------------------------------


def rows_of(samplings: Sequence[Sampling]) -> list[SamplingRow]:
    admitted = [
        Admitted(RequestKey(f"s{i}", 0), (1, 2, 3), (), sampling) for i, sampling in enumerate(samplings)
    ]
    return [SamplingRow(Answer(newcomer), 0) for newcomer in admitted]


@pytest.mark.parametrize("vocab", [301, 4099])
def test_a_rows_choice_and_logprobs_are_its_own_whatever_stands_beside_it(vocab: int) -> None:
    samplings = [replace(MIX[i % len(MIX)], seed=i, logprobs=i % 5, logit_bias=()) for i in range(24)]
    logits = torch.randn(24, vocab, generator=torch.Generator().manual_seed(3)) * 4
    sampler = RowByRowSampler(vocab, frozenset({2}))
    together = sampler.sample(logits.clone(), rows_of(samplings))
    torch.set_num_threads(3)
    for i, expected in enumerate(together):
        row = rows_of(samplings)[i]
        assert sampler.sample(logits[i : i + 1].clone(), [row]) == (expected,)
    assert torch.get_num_threads() == 3


# -- Refusals ----------------------------------------


def load(**options: Any) -> TorchRunner:
    return TorchRunner.load(
        RandomCheckpoint(), kv_cache_bytes=200_000, block_size=4, is_deterministic=True, **options
    )


def test_torchs_kernels_are_refused_with_the_reason() -> None:
    with pytest.raises(
        ModelError, match=r"--deterministic needs the native CPU kernels.*torch was asked for"
    ):
        load(dtype="float32", cpu=CpuSettings("torch"))
    with pytest.raises(ModelError, match=r"--deterministic needs .*no folder to keep them in"):
        load(dtype="bfloat16", cpu=CpuSettings("auto"))


def test_a_gpu_is_refused() -> None:
    with pytest.raises(ModelError, match=r"--deterministic is for CPUs.*--device cpu"):
        check_deterministic(Computation(None, "they are for CPUs"), torch.device("cuda"))
