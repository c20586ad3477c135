"""The launches of ``fused_sampling``, the buffers between them, and what they must move."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from headway.kernels.cases import Case, Outputs, Trial
from headway.kernels.fused_sampling import (
    IN_PROMPT,
    TILES_PER_PROGRAM,
    RowPenalties,
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
            keys=torch.empty((rows, max(vocab, tiles)), dtype=torch.int32, device=device),
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
    listed: Arguments = {
        "keys": buffers.keys,
        "keys_stride": buffers.keys.stride(0),
        "bounds": buffers.bounds,
        "counts": buffers.counts,
    }
    cuts: Arguments = {"thresholds": buffers.thresholds, "row_peaks": buffers.row_peaks}
    shares: Arguments = {"tile_shares": None if logprobs is None else buffers.tile_shares}
    filters: Arguments = {"top_k": rows.top_k, "top_p": rows.top_p}
    sums: Arguments = {"row_sums": buffers.row_sums}
    penalties = rows.penalties
    counted: Arguments = {
        "counts": None if penalties is None else penalties.counts,
        "slots": None if penalties is None else penalties.slots,
    }
    padded = next_power_of_two(tiles)
    tiling: Constants = {"TILE": TILE, "GROUP": TILES_PER_PROGRAM}
    search: Constants = {"CHUNK": CHUNK, "PIVOTS": PIVOTS}
    wide = (count, -(-tiles // TILES_PER_PROGRAM))
    few, many = 128 // chip.warp_size, 256 // chip.warp_size
    return (
        Launch(
            statistics_kernel,
            wide,
            {**source, **of_tiles, **counted, **_strengths(rows.penalties)},
            {**tiling, "IN_PROMPT": IN_PROMPT},
            num_warps=few,
        ),
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
                **counted,
            },
            {"TILE": TILE, "TILES": padded},
            num_warps=few,
        ),
    )


def _strengths(penalties: RowPenalties | None) -> Arguments:
    names = ("repetition", "presence", "frequency")
    return {name: None if penalties is None else getattr(penalties, name) for name in names}


def count_tokens(counts: Tensor, slot: int, prompt: Tensor, answer: Tensor) -> None:
    """Give a slot to a request: its prompt and the answer that it has so far, int64 token ids."""
    counts[slot] = 0
    counts[slot].index_add_(0, answer, torch.ones_like(answer, dtype=torch.int32))
    counts[slot, prompt] |= IN_PROMPT


def penalised_logits(logits: Tensor, penalties: RowPenalties) -> Tensor:
    """A penalised copy, by the formulas in ``kernels.sampling``, in torch's own operations on any device.

    For steps in which something must come between penalties and choice, which the first launch does not let
    in; and what that launch is compared with.
    """
    slots = penalties.slots.long()
    counts = torch.where(slots.unsqueeze(1) >= 0, penalties.counts[slots.clamp(min=0)], 0)
    occurrences = (counts & (IN_PROMPT - 1)).float()
    repetition, presence, frequency = (
        each.unsqueeze(1) for each in (penalties.repetition, penalties.presence, penalties.frequency)
    )
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    penalised = torch.where(counts > 0, repeated, logits)
    return penalised - occurrences * frequency - (occurrences > 0) * presence


def fused_sampling_reference(logits: Tensor, rows: RowSampling) -> tuple[Tensor, Tensor]:
    """(tokens, log-probabilities) by the definitions in ``kernels.sampling``."""
    if rows.penalties is not None:
        logits = penalised_logits(logits, rows.penalties)
    greedy = rows.temperature == 0
    tempered = temper(logits, torch.where(greedy, 1.0, rows.temperature))
    thresholds = truncation_reference(tempered, rows.top_k, rows.top_p, rows.floor.exp())
    drawn = draw(tempered, thresholds, uniforms(rows.seeds, rows.positions))
    # Of equals the first, which argmax does not promise.
    best = (logits == logits.amax(dim=-1, keepdim=True)).to(torch.int8).argmax(dim=-1)
    chosen = torch.where(greedy, best, drawn)
    return chosen, logits.log_softmax(dim=-1).gather(1, chosen.unsqueeze(1)).squeeze(1)


def fused_sampling_counts(rows: int, vocab: int, *, penalised: bool = False) -> Counts:
    """Logits read once (between launches they stay in the cache); per token an e^x and an add.

    Penalised: token counts read, logits written back.
    """
    size = 4 * rows * vocab
    return Counts(size * (1 + penalised), 12 * rows + size * penalised, 4 * rows * vocab)


def _prepare(
    device: torch.device, chip: Chip, *, count: int, vocab: int, truncated: bool, penalised: bool
) -> Trial:
    index = torch.arange(count * vocab, device=device)
    # A fixed pseudo-random field that every device computes alike.
    logits = (((index * 2654435761 + 12345) % 65521).float() / 65521 * 18.0).view(count, vocab)
    original = logits.clone()
    every = torch.arange(count, device=device)
    penalties = RowPenalties(
        counts=(index.view(count, vocab) % 7 == 0).int() * (index.view(count, vocab) % 3 + IN_PROMPT).int(),
        slots=torch.where(every % 4 == 1, -1, every.flip(0)).int(),
        repetition=(1.0 + every % 3 * 0.1).float(),
        presence=(every % 2 * 0.5).float(),
        frequency=(every % 5 * 0.2).float(),
    )
    before = penalties.counts.clone()
    kept = replace(penalties, counts=before) if penalised else None
    rows = RowSampling(
        temperature=torch.where(every % 4 == 3, 0.0, 0.7 + 0.1 * (every % 3)).float(),
        top_k=(torch.where(every % 3 == 0, 40, 0) * truncated).int(),
        top_p=torch.where(every % 2 == 0, 0.9 if truncated else 1.0, 1.0).float(),
        floor=torch.where(every % 5 == 4, math.log(0.02) if truncated else -math.inf, -math.inf).float(),
        seeds=every * 7919 - 3,
        positions=every + 2**33,
        penalties=penalties if penalised else None,
    )
    buffers = SamplingBuffers.make(count, vocab, device)
    chosen = torch.empty(count, dtype=torch.int64, device=device)
    logprobs = torch.empty(count, dtype=torch.float32, device=device)

    def launch() -> Outputs:
        if penalised:
            # A launch changes both: each begins with the same.
            logits.copy_(original)
            penalties.counts.copy_(before)
        for each in sampling_launches(logits, rows, buffers, chosen, logprobs, chip=chip):
            each.run()
        return chosen, logprobs

    return Trial(launch, lambda: fused_sampling_reference(original, replace(rows, penalties=kept)))


def _case(
    label: str, count: int, vocab: int, *, truncated: bool = True, penalised: bool = False, tiny: bool = False
) -> Case:
    return Case(
        "fused sampling",
        label,
        fused_sampling_counts(count, vocab, penalised=penalised),
        partial(_prepare, count=count, vocab=vocab, truncated=truncated, penalised=penalised),
        tiny=tiny,
        absolute_tolerance=2e-5,  # of a log-probability: the GPU's e^x and ln are good to a few ulp
    )


CASES = (
    _case("Llama 3, 1 row", 1, 128_256),
    _case("Llama 3, 32 rows", 32, 128_256),
    _case("Llama 3, 32 rows, penalised", 32, 128_256, penalised=True),
    _case("SmolLM2, 32 rows", 32, 49_152),
    _case("Qwen 3, 256 rows", 256, 151_936),
    _case("tiny", 6, 1000, tiny=True),
    _case("tiny, penalised", 6, 300, penalised=True, tiny=True),
)
