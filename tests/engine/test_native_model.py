"""The native CPU step against the torch path, and its own promise: a row's bits depend on no company."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.test_torch_runner import CONFIG, RandomCheckpoint
from tests.native_kernels import CACHE_DIR, native_library
from torch import Tensor

from headway.engine.cpu_kernels import CpuSettings, Quantization
from headway.engine.kv_cache import KVCache
from headway.engine.model_config import Architecture, ModelConfig
from headway.engine.native_model import NativeModel
from headway.engine.native_weights import load_native_weights
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import Admitted, Chunk, RequestKey, Sampling, StepPlan

GREEDY = Sampling(temperature=0.0)
LENGTH = 400
WIDE = replace(CONFIG, max_position=LENGTH, hidden_size=64, intermediate_size=96)
MODELS: dict[str, ModelConfig] = {
    "llama": WIDE,
    "llama, 9 heads on 3": replace(WIDE, head_dim=64, query_head_count=9, kv_head_count=3),
    "llama, wide heads": replace(WIDE, head_dim=80, query_head_count=4, kv_head_count=1),
    "llama, biases, own head": replace(
        WIDE, qkv_bias=True, output_bias=True, mlp_bias=True, tied_embeddings=False
    ),
    "mistral, window": replace(WIDE, architecture=Architecture.MISTRAL, sliding_window=37),
    "qwen2": replace(
        WIDE, architecture=Architecture.QWEN2, qkv_bias=True, query_head_count=7, kv_head_count=1
    ),
    "qwen3": replace(WIDE, architecture=Architecture.QWEN3, qk_norm=True, head_dim=20),
    "gelu": replace(WIDE, activation="gelu_tanh"),
}
LENGTHS = (300, 37, 1, 90)
STEPS = ((140, 20, 1, 0), (159, 1, 0, 50), (1, 16, 0, 40))
"""New tokens of each sequence, step by step: prefill in chunks beside decodes."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors: on shared cores, more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def load(
    config: ModelConfig,
    quantization: Quantization = "none",
    *,
    kernels: bool = True,
    dtype: str = "bfloat16",
    block_size: int = 16,
) -> TorchRunner:
    if kernels:
        native_library()
    return TorchRunner.load(
        RandomCheckpoint(config),
        dtype=dtype,
        kv_cache_bytes=16 << 20,
        block_size=block_size,
        cpu=CpuSettings("native" if kernels else "torch", quantization, CACHE_DIR if kernels else None),
    )


class Sequences:
    """Random prompts in scattered blocks, computed chunk by chunk; keeps every token's logits."""

    def __init__(self, runner: TorchRunner, lengths: Sequence[int] = LENGTHS, vocab: int = 300) -> None:
        self.runner = runner
        self.prompts = [
            tuple(Random(f"{place} {length}").choices(range(vocab), k=length))
            for place, length in enumerate(lengths)
        ]
        blocks = list(range(runner.block_count))
        Random(5).shuffle(blocks)
        each = -(-max(lengths) // runner.block_size)
        self.tables = [tuple(blocks[i * each : (i + 1) * each]) for i in range(len(lengths))]
        self.computed = [0] * len(lengths)
        self.logits: list[list[Tensor]] = [[] for _ in lengths]
        runner.logits(StepPlan(0, (self.chunk(0, 1),), self.admitted()))

    def admitted(self) -> tuple[Admitted, ...]:
        return tuple(Admitted(RequestKey(str(i), 0), p, (), GREEDY) for i, p in enumerate(self.prompts))

    def chunk(self, place: int, count: int) -> Chunk:
        start = self.computed[place]
        tokens = self.prompts[place][start : start + count]
        return Chunk(RequestKey(str(place), 0), start, tokens, self.tables[place], samples=True)

    def step(self, counts: Sequence[int]) -> None:
        taking = [place for place, count in enumerate(counts) if count > 0]
        chunks = tuple(self.chunk(place, counts[place]) for place in taking)
        logits = self.runner.logits(StepPlan(0, chunks))
        parts = torch.split_with_sizes(logits, [len(chunk.token_ids) for chunk in chunks])
        for place, chunk, rows in zip(taking, chunks, parts, strict=True):
            self.computed[place] += len(chunk.token_ids)
            self.logits[place].append(rows)

    def all(self, steps: Sequence[Sequence[int]] = STEPS) -> list[Tensor]:
        for counts in steps:
            self.step(counts)
        return [torch.cat(rows) for rows in self.logits]


@pytest.mark.parametrize("block_size", [4, 16, 64])
@pytest.mark.parametrize("name", list(MODELS))
def test_it_is_nearer_to_float32_than_torch_in_bfloat16(name: str, block_size: int) -> None:
    config = MODELS[name]
    exact = Sequences(load(config, kernels=False, dtype="float32", block_size=block_size)).all()
    torchs = Sequences(load(config, kernels=False, block_size=block_size)).all()
    ours = Sequences(load(config, block_size=block_size)).all()
    for wanted, theirs, got in zip(exact, torchs, ours, strict=True):
        # The same products in the same format, but a residual and norms in float32.
        assert float((got - wanted).square().mean()) <= float((theirs - wanted).square().mean())


@pytest.mark.parametrize("block_size", [4, 16, 64])
@pytest.mark.parametrize("name", list(MODELS))
def test_in_float32_it_is_torchs_but_for_the_order_of_sums(name: str, block_size: int) -> None:
    wanted = Sequences(load(MODELS[name], kernels=False, dtype="float32", block_size=block_size)).all()
    ours = Sequences(load(MODELS[name], dtype="float32", block_size=block_size)).all()
    for expected, got in zip(wanted, ours, strict=True):
        assert float((got - expected).abs().max()) <= 2e-5 * float(expected.abs().max())


@pytest.mark.parametrize(
    ("dtype", "quantization"), [("bfloat16", "none"), ("bfloat16", "int8"), ("float32", "none")]
)
@pytest.mark.parametrize("name", ["llama, 9 heads on 3", "mistral, window", "qwen3"])
def test_a_row_has_the_same_bits_alone_and_in_any_batch_and_any_chunks(
    name: str, dtype: str, quantization: Quantization
) -> None:
    runner = load(MODELS[name], quantization, dtype=dtype)
    together = Sequences(runner).all()

    def alone(place: int, chunks: Sequence[int]) -> Tensor:
        steps = [[count if i == place else 0 for i in range(len(LENGTHS))] for count in chunks]
        return _only(Sequences(runner), place, steps)

    for place, length in enumerate(LENGTHS):
        for chunk in (length, 64, 33):
            counts = [min(chunk, length - start) for start in range(0, length, chunk)]
            assert torch.equal(alone(place, counts), together[place])
    decoded = alone(1, [1] * LENGTHS[1])
    assert torch.equal(decoded, together[1])


def _only(sequences: Sequences, place: int, steps: Sequence[Sequence[int]]) -> Tensor:
    for counts in steps:
        sequences.step(counts)
    return torch.cat(sequences.logits[place])


@settings(max_examples=15, deadline=None)
@given(lengths=st.lists(st.integers(1, 130), min_size=1, max_size=5), seed=st.integers(0, 2**32))
def test_any_company_leaves_the_bits_of_a_row(lengths: list[int], seed: int) -> None:
    runner, random = shared_runner(), Random(seed)
    alone = [
        _only(Sequences(runner, lengths), i, [[n if j == i else 0 for j in range(len(lengths))]])
        for i, n in enumerate(lengths)
    ]
    together = Sequences(runner, lengths)
    while together.computed != lengths:
        left = [n - done for n, done in zip(lengths, together.computed, strict=True)]
        counts = [random.randint(0, n) for n in left]
        if any(counts):
            together.step(counts)
    for one, rows in zip(alone, together.logits, strict=True):
        assert torch.equal(torch.cat(rows), one)


_SHARED: list[TorchRunner] = []


def shared_runner() -> TorchRunner:
    if not _SHARED:
        _SHARED.append(load(MODELS["llama"]))
    return _SHARED[0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_number_of_threads_changes_no_bit(dtype: torch.dtype) -> None:
    config, library = MODELS["llama, 9 heads on 3"], native_library()
    weights = load_native_weights(library, RandomCheckpoint(config), LENGTH, "none", dtype)
    results: list[Tensor] = []
    for threads in (1, 2, 5):
        cache = KVCache(config, block_count=100, block_size=16, dtype=dtype, device=torch.device("cpu"))
        model = NativeModel(library, weights, cache, threads)
        runner = TorchRunner(
            config,
            model,
            cache,
            dtype=dtype,
            device=torch.device("cpu"),
            max_model_len=LENGTH,
            clock=lambda: 0.0,
        )
        results.append(torch.cat(Sequences(runner).all()))
        model.close()
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_what_lies_in_blocks_behind_a_sequence_never_reaches_it(dtype: str) -> None:
    runner = load(MODELS["mistral, window"], dtype=dtype)
    clean = Sequences(runner).all()
    poisoned = load(MODELS["mistral, window"], dtype=dtype)
    with torch.inference_mode():
        poisoned._cache.pools.fill_(float("nan"))
    for wanted, got in zip(clean, Sequences(poisoned).all(), strict=True):
        assert torch.equal(got, wanted)


def test_the_most_likely_token_is_the_first_of_the_largest_logits() -> None:
    runner = load(MODELS["llama, biases, own head"])
    sequences = Sequences(runner)
    chunks = tuple(sequences.chunk(place, count) for place, count in enumerate((140, 37, 1, 90)))
    logits = runner.logits(StepPlan(0, chunks))
    ends = torch.tensor([len(chunk.token_ids) for chunk in chunks]).cumsum(0) - 1
    result = runner.execute(StepPlan(1, chunks))
    assert [entry.token_id for entry in result.sampled] == logits[ends].argmax(dim=-1).tolist()


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("name", ["llama, 9 heads on 3", "mistral, window", "qwen3"])
def test_rows_that_alone_go_through_the_last_layer_have_the_bits_that_they_have_among_all(
    name: str, quantization: Quantization
) -> None:
    runner = load(MODELS[name], quantization)
    sequences = Sequences(runner)
    chunks = tuple(sequences.chunk(place, count) for place, count in enumerate((140, 37, 1, 90)))
    everything = runner.logits(StepPlan(0, chunks))
    model, answers = runner._model, [runner._answer(chunk) for chunk in chunks]
    assert isinstance(model, NativeModel)
    wanted = [267, 139, 0, 177, 53]
    most_likely, kept = model.forward(chunks, answers, wanted, 3)
    assert torch.equal(kept, everything[wanted[:3]])
    assert most_likely == everything[wanted].argmax(dim=-1).tolist()
    # Wanted twice: then all rows go on, to the same bits.
    assert torch.equal(model.forward(chunks, answers, [5, 5], 2)[1], everything[[5, 5]])


def test_greedy_rows_among_others_get_the_tokens_that_they_get_alone() -> None:
    runner = load(MODELS["llama"])
    kinds = (
        GREEDY,
        Sampling(temperature=1.0, seed=3, logprobs=2),
        Sampling(temperature=0.0, logprobs=1),
        Sampling(temperature=0.0, repetition_penalty=1.5),
        GREEDY,
        Sampling(temperature=0.0, logit_bias=((7, 100.0),)),
        Sampling(temperature=0.0, min_tokens=3),
    )
    admitted = tuple(
        Admitted(RequestKey(f"r{i}", 0), tuple(range(i, i + 20)), (), kind) for i, kind in enumerate(kinds)
    )
    chunks = tuple(
        Chunk(a.key, 0, a.prompt_token_ids, (2 * i, 2 * i + 1), samples=True) for i, a in enumerate(admitted)
    )
    together = runner.execute(StepPlan(1, chunks, admitted)).sampled
    assert [entry.key for entry in together] == [a.key for a in admitted]
    assert together[5].token_id == 7
    alone = [runner.execute(StepPlan(1, (chunk,))).sampled[0] for chunk in chunks]
    assert list(together) == alone


def test_a_step_with_nothing_to_sample_writes_its_keys_and_values() -> None:
    runner = load(MODELS["llama"])
    sequences = Sequences(runner)
    first = sequences.chunk(0, 100)._replace(samples=False)
    assert runner.execute(StepPlan(1, (first,))).sampled == ()
    sequences.computed[0] = 100
    sequences.step((200, 0, 0, 0))
    whole = Sequences(runner)
    whole.step((300, 0, 0, 0))
    assert torch.equal(sequences.logits[0][0], whole.logits[0][0][100:])
