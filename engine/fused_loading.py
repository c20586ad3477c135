"""From a checkpoint to a runner on a GPU: memory counted out, weights laid out, graphs recorded."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from headway.engine.checkpoint import Checkpoint
from headway.engine.compute_dtype import compute_dtype
from headway.engine.deterministic import mark_of
from headway.engine.errors import ModelError
from headway.engine.expected_buckets import Expected
from headway.engine.fused_model import FusedModel
from headway.engine.fused_runner import FusedRunner
from headway.engine.kv_cache import INT8, KVCache, block_bytes, block_count_within
from headway.engine.kv_number import GpuKvCacheDType, choose_kv_number
from headway.engine.model_config import ModelConfig
from headway.engine.model_tiles import ChosenTiles, ModelTiles, record_in
from headway.engine.product_forms import GpuQuantization, head_product, layer_product
from headway.engine.rope import rotary_tables
from headway.engine.scaled_linear import STORED
from headway.engine.shard import WHOLE, Shard
from headway.engine.start_memory import told_of_memory
from headway.engine.step_graphs import CudaGraphs, GraphMaker
from headway.engine.tile_stopwatch import TileStopwatch
from headway.engine.torch_weights import load_weights, weight_bytes
from headway.engine.warm_up import warm_up
from headway.kernels.attention_plan import AttentionShape
from headway.kernels.launch import Chip, UnsupportedChipError, chip_of
from headway.kernels.triton_language import AVAILABLE, INTERPRETED

MASK_THREADS = 4
"""Of the host, that find out what constrained requests may choose."""
KV_SHARE = 0.9
"""Of the memory that the weights leave, for the KV cache unless it was given: the rest is for activations,
graphs and the libraries' workspaces."""


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """What the caller wants of a GPU."""

    quantization: GpuQuantization = "none"
    has_graphs: bool = True
    max_sequences: int = 32
    """Requests of a step that decode buckets are recorded for before anybody waits; 0: nothing is compiled or
    recorded then."""
    draft_tokens: int = 0
    """Guessed tokens of a request in a step at most: their rows have room before graphs are recorded."""
    kv_cache_dtype: GpuKvCacheDType = "auto"
    is_deterministic: bool = False
    """Nobody's company changes a bit of an answer: every sum has one order (``docs/deterministic.md``)."""
    tunes_tiles: bool = False
    """Measure which of a few tiles each kernel is fastest with, and remember it."""
    tile_folder: str | None = None
    """Where it is remembered; None: nowhere. Only rank 0 looks there."""


def can_fuse(device: torch.device) -> bool:
    """Whether the GPU's kernels can run there: a GPU that they are made for, and Triton to compile for it."""
    return obstacle(device) is None


def obstacle(device: torch.device) -> str | None:
    """Why the GPU's kernels cannot run there, in words."""
    if device.type != "cuda":
        return f"they are for GPUs of NVIDIA and AMD, and this is {device}"
    if not AVAILABLE:
        return "Triton is not installed"
    try:
        chip_of(device)
    except UnsupportedChipError as error:
        return str(error)
    return None


def load_fused_runner(
    checkpoint: Checkpoint,
    *,
    kv_cache_bytes: int | None,
    host_cache_bytes: int = 0,
    dtype: str = "auto",
    device: str = "cuda",
    block_size: int = 16,
    max_model_len: int | None = None,
    gpu: GpuSettings | None = None,
    shard: Shard = WHOLE,
    graphs: GraphMaker | None = None,
    tiles: ChosenTiles | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> FusedRunner:
    """Load, lay out and warm up a model, or one shard of it.

    ``kv_cache_bytes`` None: most of what the weights leave on the device. ``host_cache_bytes``: pinned host
    memory for swapped requests. ``graphs``: instead of CUDA's. ``tiles``: instead of what is measured. Raises
    ModelError, saying what to change.
    """
    gpu, place = gpu or GpuSettings(), torch.device(device)
    config = shard.config(checkpoint.config)
    number = compute_dtype(dtype, place, {})
    try:
        chip = chip_of(place)
    except UnsupportedChipError as error:
        raise ModelError(f"{error}; take another --device") from error
    # By it the batch is cut: ranks must cut alike, or they would record other graphs.
    chip = replace(chip, processors=shard.agree(chip.processors))
    shard = replace(shard, in_fixed_order=gpu.is_deterministic)
    product = partial(layer_product, gpu.quantization, number, chip, in_fixed_order=gpu.is_deterministic)
    product()  # what cannot be had is refused before anything is measured
    kv_number = choose_kv_number(gpu.kv_cache_dtype, config, dtype=number, block_size=block_size, chip=chip)
    kv = number if kv_number is None else INT8
    room = _kv_cache_bytes(kv_cache_bytes, _weight_bytes(config, number, gpu.quantization), place)
    blocks = shard.agree(block_count_within(config, kv_cache_bytes=room, block_size=block_size, dtype=kv))
    limit = min(config.max_position, max_model_len or config.max_position, blocks * block_size)
    model_tiles = _model_tiles(config, gpu, number, block_size, chip)
    if tiles is None:
        tiles = _choose_tiles(model_tiles, gpu, place, shard, clock)
    kv_bytes = blocks * block_bytes(config, block_size, kv)
    with torch.inference_mode(), told_of_memory(place, kv_bytes):
        cache = KVCache(config, block_count=blocks, block_size=block_size, dtype=kv, device=place)
        tables = rotary_tables(config.rope, config.head_dim, limit, number, place)
        weights = load_weights(
            checkpoint,
            number,
            place,
            shard=shard,
            make_product=product(tiles=model_tiles.products(tiles)),
            make_head=head_product(in_fixed_order=gpu.is_deterministic),
        )
        model = FusedModel(config, weights, tables, chip, is_deterministic=gpu.is_deterministic)
    if gpu.has_graphs and graphs is None and place.type == "cuda":
        graphs = CudaGraphs(place)
    plain = attention_shape(config, block_size, number, place, has_eight_bits=kv_number is not None)
    shape = model_tiles.attention(plain, tiles)
    runner = FusedRunner(
        config,
        model,
        cache,
        shape,
        chip,
        max_model_len=limit,
        clock=clock,
        host_slots=host_cache_bytes // block_bytes(config, block_size, kv),
        graphs=graphs if gpu.has_graphs else None,
        kernels=_in_words(chip, gpu, shard, graphs is not None),
        kv_number=kv_number,
        is_deterministic=gpu.is_deterministic,
    )
    runner.tiles = tiles
    runner.hold_to_grammars(checkpoint.tokenizer, threads=MASK_THREADS)
    with told_of_memory(place, kv_bytes):
        _make_ready(runner, gpu, shape, chip, has_graphs=gpu.has_graphs and graphs is not None)
    return runner


def _make_ready(
    runner: FusedRunner, gpu: GpuSettings, shape: AttentionShape, chip: Chip, *, has_graphs: bool
) -> None:
    """Compile and record what steps are going to need."""
    warm_up(runner, decode_rows=(1,))  # the way of a plan; what comes in which shape follows
    if gpu.max_sequences:
        expected = Expected(
            shape,
            chip,
            gpu.max_sequences,
            runner.max_model_len,
            gpu.is_deterministic,
            has_graphs,
            gpu.draft_tokens,
        )
        # The interpreter compiles nothing, and takes a second for each. Graphs from the largest on, so that
        # smaller ones fit into the memory that they share.
        buckets = (*(() if INTERPRETED else expected.forms()), *reversed(expected.decodes()))
        runner.expect(buckets, most_rows=expected.most_choices)
    if gpu.is_deterministic:
        runner.kernels += f", deterministic {mark_of(runner)}"  # all ranks at once: their sums meet


def _model_tiles(
    config: ModelConfig, gpu: GpuSettings, dtype: torch.dtype, block_size: int, chip: Chip
) -> ModelTiles:
    cache = gpu.kv_cache_dtype
    quantized = None if cache == "auto" or cache == "bf16" else cache  # noqa: PLR1714  # narrows
    return ModelTiles(config, gpu.quantization, quantized, dtype, block_size, gpu.max_sequences, chip)


def _choose_tiles(
    model_tiles: ModelTiles,
    gpu: GpuSettings,
    device: torch.device,
    shard: Shard,
    clock: Callable[[], float],
) -> ChosenTiles:
    """Before anything is loaded: there is memory for it, and graphs are recorded with what comes out."""
    # In which order sums are made may not depend on a measurement, which comes out otherwise elsewhere.
    if not gpu.tunes_tiles or gpu.is_deterministic or device.type != "cuda":
        return ChosenTiles()
    stopwatch = TileStopwatch(device, model_tiles.chip)
    chosen = model_tiles.choose(stopwatch, clock, record_in(gpu.tile_folder, device), shard)
    stopwatch.close()
    return chosen


def attention_shape(
    config: ModelConfig,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    *,
    has_eight_bits: bool = False,
) -> AttentionShape:
    """What attention has to know of a model."""
    return AttentionShape(
        query_heads=config.query_head_count,
        kv_heads=config.kv_head_count,
        head_dim=config.head_dim,
        block_size=block_size,
        sliding_window=config.sliding_window,
        dtype=dtype,
        device=device,
        has_eight_bits=has_eight_bits,
    )


def _weight_bytes(config: ModelConfig, dtype: torch.dtype, quantization: GpuQuantization) -> int:
    """Bytes of the shard's weights: the head is counted whole, though ranks share it."""
    whole = weight_bytes(config, dtype)
    if config.tied_embeddings:
        whole -= config.vocab_size * config.hidden_size * dtype.itemsize  # a GPU needs no second layout of it
    if quantization == "none":
        return whole
    kept = weight_bytes(replace(config, layer_count=0), dtype)
    return kept + (whole - kept) // dtype.itemsize


def _kv_cache_bytes(given: int | None, weights: int, device: torch.device) -> int:
    if device.type != "cuda":
        if given is None:
            raise ModelError("say how large the KV cache may be (--kv-cache)")
        return given
    free, _ = torch.cuda.mem_get_info(device)
    left = free - weights
    if left <= 0 or (given or 0) > left:
        raise ModelError(
            f"too little memory on {device}: weights take {weights / 2**30:.2f} of {free / 2**30:.2f} GiB "
            "that are free; lower --kv-cache, take --quantization fp8, a smaller model, or more GPUs "
            "(--tensor-parallel)"
        )
    return given or int(KV_SHARE * left)


def _in_words(chip: Chip, gpu: GpuSettings, shard: Shard, has_graphs: bool) -> str:
    parts = [f"triton for {chip.name}"]
    if gpu.quantization != "none":
        parts.append(f"{gpu.quantization} weights" if gpu.quantization in STORED else gpu.quantization)
    if gpu.kv_cache_dtype in STORED:
        parts.append(f"KV {gpu.kv_cache_dtype}")
    parts.append("graphs" if has_graphs and gpu.has_graphs else "no graphs")
    if shard.size > 1:
        parts.append(f"rank {shard.rank} of {shard.size}")
    return ", ".join(parts)
