"""Keys and values in 8 bits: how far they may be from what was to be kept, and what stays as it was."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.engine.test_native_model import LENGTHS, MODELS, WIDE, Sequences
from tests.engine.test_torch_runner import RandomCheckpoint, SpokenCheckpoint
from tests.native_kernels import CACHE_DIR, native_library
from torch import Tensor

from headway.engine import quantization_choice
from headway.engine.cpu_kernels import CpuSettings, KvCacheDType, Quantization
from headway.engine.errors import ModelError
from headway.engine.kv_cache import INT8, block_count_within
from headway.engine.model_config import ModelConfig
from headway.engine.native_model import NativeModel
from headway.engine.quantization_check import log_likelihoods, text_tokens
from headway.engine.scripted import ByteTokenizer
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import StepPlan

LONG = replace(WIDE, max_position=1500, head_dim=64, query_head_count=9, kv_head_count=3)
IN_PLACE = [name for name, config in MODELS.items() if config.head_dim % 16 == 0]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors: on shared cores, more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def load(config: ModelConfig, kv: KvCacheDType = "int8", **options: Any) -> TorchRunner:
    native_library()
    cpu = CpuSettings("native", "none", CACHE_DIR, keeps_weights=False, kv_cache_dtype=kv)
    given: dict[str, Any] = {"dtype": "bfloat16", "kv_cache_bytes": 32 << 20, "cpu": cpu, **options}
    return TorchRunner.load(RandomCheckpoint(config), **given)


def kept(runner: TorchRunner, layer: int) -> tuple[Tensor, Tensor]:
    """Keys and values of a layer, float32 [blocks, kv_heads, block_size, head_dim], as kernels read them."""
    pools, size = runner._cache.pools, runner.block_size
    words = 4 if pools.dtype == INT8 else 2
    flat = pools[layer].flatten(start_dim=3)
    width = pools.shape[5] - (4 if pools.dtype == INT8 else 0)
    tiles, scales = flat[..., : size * width], torch.ones(())
    if pools.dtype == INT8:
        scales = flat[..., size * width :].contiguous().view(torch.float32).unsqueeze(-1)
    place = tiles.shape[1:3]
    keys = tiles[0].reshape(*place, width // words, size, words).transpose(-3, -2).flatten(start_dim=-2)
    values = tiles[1].reshape(*place, size // words, width, words).transpose(-2, -1).flatten(-3, -2)
    if pools.dtype == INT8:
        keys, values = keys.int() - 128, values.view(torch.int8)
        return keys * scales[0], values * scales[1]
    return keys.float(), values.float()


@pytest.mark.parametrize("name", IN_PLACE)
def test_what_is_kept_is_within_half_a_step_of_what_was_computed(name: str) -> None:
    (keys, values), (wanted_keys, wanted_values) = [
        kept_of_the_longest(load(MODELS[name], kv)) for kv in ("int8", "bf16")
    ]
    for got, wanted in ((keys, wanted_keys), (values, wanted_values)):
        largest = wanted.abs().amax(dim=-1, keepdim=True)
        assert bool((largest > 0).all())
        # Half of a 127th of the largest, and the reference's own rounding to 8 bits of significand.
        assert bool(((got - wanted).abs() <= largest * (1 / 254 + 1 / 256)).all())


def kept_of_the_longest(runner: TorchRunner) -> tuple[Tensor, Tensor]:
    """Its whole blocks in the first layer, which depend on no attention."""
    sequences = Sequences(runner)
    sequences.all()
    blocks = list(sequences.tables[0][: LENGTHS[0] // runner.block_size])
    keys, values = kept(runner, 0)
    return keys[blocks], values[blocks]


@pytest.mark.parametrize("name", IN_PLACE)
def test_its_logits_are_not_much_further_from_float32_than_torch_in_bfloat16(name: str) -> None:
    exact = _logits(load(MODELS[name], "auto", dtype="float32", cpu=CpuSettings("torch")))
    torchs = _logits(load(MODELS[name], "auto", cpu=CpuSettings("torch")))
    ours = _logits(load(MODELS[name]))
    assert float((ours - exact).square().mean()) <= 2 * float((torchs - exact).square().mean())


def _logits(runner: TorchRunner) -> Tensor:
    return torch.cat(Sequences(runner).all())


@pytest.mark.parametrize("kv", ["bf16", "int8"])
def test_a_long_row_has_the_same_bits_cut_into_splits_and_in_company(kv: KvCacheDType) -> None:
    """Alone, its keys are dealt among the threads in splits of 512; in company they are not."""
    lengths = (1400, 600, 40, 40, 40, 40, 40, 40)
    steps = [
        tuple(min(left, 350) for left in (max(0, n - done) for n in lengths)) for done in (0, 350, 700, 1050)
    ]
    torch.set_num_threads(2)
    runner = load(LONG, kv)
    together = Sequences(runner, lengths).all(steps)
    for place, length in ((0, 1400), (1, 600)):
        for chunks in ((length - 3, 1, 1, 1), (length - 130, 97, 33)):
            alone = _alone(runner, lengths, place, chunks)
            assert torch.equal(alone, together[place])
    # In one chunk, with only the last row in the last layer: its keys are dealt in splits there too.
    chunk = Sequences(runner, lengths).chunk(0, 1400)
    model = runner._model
    assert isinstance(model, NativeModel)
    last = model.forward([chunk], [runner._answer(chunk)], [1399], 1)[1]
    assert torch.equal(last[0], together[0][1399])


def _alone(runner: TorchRunner, lengths: Sequence[int], place: int, chunks: Sequence[int]) -> Tensor:
    sequences = Sequences(runner, lengths)
    for count in chunks:
        sequences.step([count if i == place else 0 for i in range(len(lengths))])
    return torch.cat(sequences.logits[place])


def test_blocks_can_be_copied_without_knowing_what_is_in_them() -> None:
    runner = load(MODELS["llama, 9 heads on 3"])
    sequences = Sequences(runner, (100,))
    sequences.step((90,))
    cache, table = runner._cache, sequences.tables[0]
    spare = [block for block in range(runner.block_count) if block not in table][: len(table)]
    with torch.inference_mode():
        cache.copy(table, spare)
        cache.pools[:, :, list(table)] = 255
    sequences.tables[0] = tuple(spare)
    sequences.step((10,))
    whole = Sequences(runner, (100,))
    whole.step((100,))
    assert torch.equal(torch.cat(sequences.logits[0]), whole.logits[0][0])


def test_it_holds_nearly_twice_the_tokens() -> None:
    def blocks(dtype: torch.dtype) -> int:
        return block_count_within(LONG, kv_cache_bytes=1 << 24, block_size=16, dtype=dtype)

    assert blocks(INT8) / blocks(torch.bfloat16) > 1.88
    runner = load(LONG, kv_cache_bytes=1 << 24)
    assert runner.block_count == blocks(INT8)
    assert runner.block_bytes * runner.block_count == runner._cache.pools.nbytes


def test_the_log_tells_that_the_cache_is_in_8_bits() -> None:
    assert load(LONG).kernels.endswith("KV int8)")
    assert "KV" not in load(LONG, "auto").kernels


class InPieces:
    """A runner that reads what it is given to score in chunks, as a busy worker does."""

    def __init__(self, runner: TorchRunner, tokens: int) -> None:
        self.block_size = runner.block_size
        self._runner = runner
        self._tokens = tokens

    def logits(self, plan: StepPlan) -> Tensor:
        [chunk] = plan.chunks
        parts: list[Tensor] = []
        for start in range(0, len(chunk.token_ids), self._tokens):
            part = chunk._replace(start=start, token_ids=chunk.token_ids[start : start + self._tokens])
            parts.append(self._runner.logits(replace(plan, chunks=(part,))))
            plan = replace(plan, admitted=(), released=())
        return torch.cat(parts)


@pytest.mark.parametrize("window", [512, 300])
def test_what_is_measured_in_one_pass_has_gone_through_the_cache(window: int) -> None:
    """A chunk finds what stands before it in the cache alone, so equal bits come from there too."""
    tokens = text_tokens(ByteTokenizer(), 1100)
    runner = load(LONG)
    whole = log_likelihoods(runner, tokens, window)
    assert torch.equal(log_likelihoods(InPieces(runner, 100), tokens, window), whole)
    assert not torch.equal(log_likelihoods(load(LONG, "bf16"), tokens, window), whole)


def auto(config: ModelConfig, quantization: Quantization = "auto", **options: Any) -> TorchRunner:
    native_library()
    cpu = CpuSettings("native", quantization, CACHE_DIR, keeps_weights=False)
    given: dict[str, Any] = {"dtype": "bfloat16", "kv_cache_bytes": 1 << 24, "cpu": cpu, **options}
    return TorchRunner.load(SpokenCheckpoint(config), **given)


@pytest.mark.parametrize(("quantization", "weights"), [("auto", "int8"), ("int8", "int8"), ("none", "bf16")])
def test_auto_takes_it_where_the_pair_keeps_the_bound(quantization: Quantization, weights: str) -> None:
    runner = auto(LONG, quantization)
    assert runner.kernels.endswith("KV int8)")
    assert re.match(rf"{weights} weights with int8 KV: [+-]0\.\d\d% ± .* against bfloat16", runner.weights)
    assert runner.block_count == block_count_within(LONG, kv_cache_bytes=1 << 24, block_size=16, dtype=INT8)


def test_auto_leaves_it_where_the_pair_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantization_choice, "BOUND", -0.9)
    runner = auto(LONG)
    assert runner.weights.startswith("bf16 weights with bf16 KV: no other is near enough to bfloat16; int8 ")
    assert "KV" not in runner.kernels
    assert runner._cache.pools.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("config", "options"), [(MODELS["qwen3"], {}), (replace(LONG, max_position=300), {"block_size": 8})]
)
def test_auto_leaves_it_where_it_cannot_be_had_and_says_so(
    config: ModelConfig, options: dict[str, Any]
) -> None:
    runner = auto(config, **options)
    assert "KV" not in runner.kernels
    assert "with bf16 KV" in runner.weights
    assert "no int8 KV: blocks" in runner.weights


@pytest.mark.parametrize("options", [{"dtype": "float32"}, {"cpu": CpuSettings("torch", "auto")}])
def test_auto_is_the_computations_own_without_bfloat16_kernels(options: dict[str, Any]) -> None:
    runner = auto(LONG, **options)
    assert runner._cache.pools.dtype == runner.dtype
    assert runner.weights == "in memory"


@pytest.mark.parametrize(
    ("config", "kv", "options", "words"),
    [
        (LONG, "int8", {"dtype": "float32"}, "goes with --dtype bfloat16"),
        (LONG, "bf16", {"dtype": "float32"}, "take --dtype bfloat16"),
        (LONG, "int8", {"block_size": 8}, "multiples of 16"),
        (MODELS["qwen3"], "int8", {}, "multiples of 16"),
    ],
)
def test_what_cannot_be_had_is_refused_with_what_to_do(
    config: ModelConfig, kv: KvCacheDType, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        load(config, kv, **options)


def test_without_native_kernels_it_is_refused() -> None:
    with pytest.raises(ModelError, match="only the native CPU kernels read one"):
        load(LONG, cpu=CpuSettings("torch", kv_cache_dtype="int8"))
