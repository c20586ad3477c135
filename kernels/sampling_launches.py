"""The launches of ``fused_sampling``, the buffers between them, and what they must move."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from headway.kernels.cases import Case, Outputs, Trial
from headway.kernels.fused_sampling import (
    TILES_PER_PROGRAM,
    RowSampling,
    pick_kernel,
    statistics_kernel,
    weights_kernel,
)
from headway.kernels.launch import Argument, Chip, Constant, Counts, Launch, chip_of, next_power_of_two
from headway.kernels.philox import uniforms
from headway.kernels.sampling import TILE, draw, temper, truncation_reference
from headway.kernels.truncation_search import (
    CHUNK,
    PIVOTS,
    TILES_LISTED,
    ZERO_WEIGHT_KEY,
    candidates_kernel,
    threshold_kernel,
)

Arguments: TypeAlias = dict[str, Argument | None]
Constants: TypeAlias = dict[str, Constant]


@dataclass(frozen=True, slots=True)
class SamplingBuffers:
    """What the launches leave for each other; made once for the most rows, so a graph can hold them."""

    tile_peaks: Tensor
    tile_sums: Tensor
    tile_shares: Tensor
    row_peaks: Tensor
    row_sums: Tensor
    keys: Tensor
    bounds: Tensor
    counts: Tensor
    thresholds: Tensor

    @classmethod
    def make(cls, rows: int, vocab: int, device: torch.device) -> SamplingBuffers:
        """For up to ``rows`` rows."""
        tiles = -(-vocab // TILE)
        return cls(
            tile_peaks=torch.empty((rows, tiles), dtype=torch.float32, device=device),
            tile_sums=torch.empty((rows, tiles), dtype=torch.float64, device=device),
            tile_shares=torch.empty((rows, tiles), dtype=torch.float64, device=device),
            row_peaks=torch.empty(rows, dtype=torch.float32, device=device),
            row_sums=torch.empty(rows, dtype=torch.float64, device=device),
            keys=torch.empty((rows, vocab + next_power_of_two(tiles)), dtype=torch.int32, device=device),
            bounds=torch.empty(rows, dtype=torch.int32, device=device),
            counts=torch.empty(rows, dtype=torch.int32, device=device),
            thresholds=torch.empty(rows, dtype=torch.float32, device=device),
        )


def fused_sampling(
    logits: Tensor, rows: RowSampling, buffers: SamplingBuffers, chosen: Tensor, logprobs: Tensor | None
) -> None:
    """Choose a token per row of ``logits`` [rows, vocab] float32 (on a GPU) into ``chosen`` int64 [rows].

    ``logprobs`` float32 [rows]: where to write ln softmax(logits) of the choice; None: not computed.
    """
    for launch in sampling_launches(logits, rows, buffers, chosen, logprobs, chip=chip_of(logits.device)):
        launch.run()


def sampling_launches(
    logits: Tensor,
    rows: RowSampling,
    buffers: SamplingBuffers,
    chosen: Tensor,
    logprobs: Tensor | None,
    *,
    chip: Chip,
) -> tuple[Launch, ...]:
    """In order; logits' rows dense."""
    count, vocab = logits.shape
    tiles = -(-vocab // TILE)
    source: Arguments = {
        "logits": logits,
        "row_stride": logits.stride(0),
        "vocab": vocab,
        "temperature": rows.temperature,
    }
    of_tiles: Arguments = {"tile_peaks": buffers.tile_peaks, "tile_sums": buffers.tile_sums, "tiles": tiles}
    listed: Arguments = {"keys": buffers.keys, "bounds": buffers.bounds, "counts": buffers.counts}
    cuts: Arguments = {"thresholds": buffers.thresholds, "row_peaks": buffers.row_peaks}
    shares: Arguments = {"tile_shares": None if logprobs is None else buffers.tile_shares}
    filters: Arguments = {"top_k": rows.top_k, "top_p": rows.top_p}
    sums: Arguments = {"row_sums": buffers.row_sums}
    padded = next_power_of_two(tiles)
    tiling: Constants = {"TILE": TILE, "GROUP": TILES_PER_PROGRAM}
    search: Constants = {"TILES": padded, "CHUNK": CHUNK, "PIVOTS": PIVOTS}
    wide = (count, -(-tiles // TILES_PER_PROGRAM))
    few, many = 128 // chip.warp_size, 256 // chip.warp_size
    return (
        Launch(statistics_kernel, wide, {**source, **of_tiles}, tiling, num_warps=few),
        Launch(
            candidates_kernel,
            (count,),
            {**source, **filters, **of_tiles, "row_peaks": buffers.row_peaks, **sums, **listed},
            {**search, "TILE": TILE, "GROUP": TILES_LISTED, "ZERO_WEIGHT_KEY": ZERO_WEIGHT_KEY},
            num_warps=many,
        ),
        Launch(
            threshold_kernel,
            (count,),
            {
                "vocab": vocab,
                **filters,
                "floor": rows.floor,
                **sums,
                **listed,
                "thresholds": buffers.thresholds,
            },
            search,
            num_warps=many,
        ),
        Launch(
            weights_kernel,
            wide,
            {**source, **cuts, "tile_sums": buffers.tile_sums, **shares, "tiles": tiles},
            tiling,
            num_warps=few,
        ),
        Launch(
            pick_kernel,
            (count,),
            {
                **source,
                "seeds": rows.seeds,
                "positions": rows.positions,
                **cuts,
                **of_tiles,
                **shares,
                "chosen": chosen,
                "logprobs": logprobs,
            },
            {"TILE": TILE, "TILES": padded},
            num_warps=few,
        ),
    )


def fused_sampling_reference(logits: Tensor, rows: RowSampling) -> tuple[Tensor, Tensor]:
    """(tokens, log-probabilities) by the definitions in ``kernels.sampling``."""
    greedy = rows.temperature == 0
    tempered = temper(logits, torch.where(greedy, 1.0, rows.temperature))
    thresholds = truncation_reference(tempered, rows.top_k, rows.top_p, rows.floor.exp())
    drawn = draw(tempered, thresholds, uniforms(rows.seeds, rows.positions))
    # Of equals the first, which argmax does not promise.
    best = (logits == logits.amax(dim=-1, keepdim=True)).to(torch.int8).argmax(dim=-1)
    chosen = torch.where(greedy, best, drawn)
    return chosen, logits.log_softmax(dim=-1).gather(1, chosen.unsqueeze(1)).squeeze(1)


def fused_sampling_counts(rows: int, vocab: int) -> Counts:
    """The logits read once (they may stay in the cache between launches); per token an e^x and an add."""
    return Counts(4 * rows * vocab, 12 * rows, 4 * rows * vocab)


def _prepare(device: torch.device, chip: Chip, *, count: int, vocab: int, truncated: bool) -> Trial:
    index = torch.arange(count * vocab, device=device)
    # A fixed pseudo-random field that every device computes alike.
    logits = (((index * 2654435761 + 12345) % 65521).float() / 65521 * 18.0).view(count, vocab)
    every = torch.arange(count, device=device)
    rows = RowSampling(
        temperature=torch.where(every % 4 == 3, 0.0, 0.7 + 0.1 * (every % 3)).float(),
        top_k=(torch.where(every % 3 == 0, 40, 0) * truncated).int(),
        top_p=torch.where(every % 2 == 0, 0.9 if truncated else 1.0, 1.0).float(),
        floor=torch.where(every % 5 == 4, math.log(0.02) if truncated else -math.inf, -math.inf).float(),
        seeds=every * 7919 - 3,
        positions=every + 2**33,
    )
    buffers = SamplingBuffers.make(count, vocab, device)
    chosen = torch.empty(count, dtype=torch.int64, device=device)
    logprobs = torch.empty(count, dtype=torch.float32, device=device)

    def launch() -> Outputs:
        for each in sampling_launches(logits, rows, buffers, chosen, logprobs, chip=chip):
            each.run()
        return chosen, logprobs

    return Trial(launch, lambda: fused_sampling_reference(logits, rows))


def _case(label: str, count: int, vocab: int, *, truncated: bool = True, tiny: bool = False) -> Case:
    return Case(
        "fused sampling",
        label,
        fused_sampling_counts(count, vocab),
        partial(_prepare, count=count, vocab=vocab, truncated=truncated),
        tiny=tiny,
        absolute_tolerance=2e-5,  # of a log-probability: the GPU's e^x and ln are good to a few ulp
    )


CASES = (
    _case("Llama 3, 1 row", 1, 128_256),
    _case("Llama 3, 32 rows", 32, 128_256),
    _case("Llama 3, 32 rows, untruncated", 32, 128_256, truncated=False),
    _case("SmolLM2, 32 rows", 32, 49_152),
    _case("Qwen 3, 256 rows", 256, 151_936),
    _case("tiny", 11, 1000, tiny=True),
)
