"""Whole KV blocks between places: gathered for a swap, scattered after one, copied for forks.

    gather    content[i, p] = pools[p, blocks[i]]
    scatter   pools[p, blocks[i]] = content[i, p]
    copy      pools[p, targets[i]] = pools[p, sources[i]]          no block is both source and target

pools: [layers, 2, blocks, kv_heads, block_size, d], seen as planes p of [blocks, row]; content: [n, layers,
2, kv_heads, block_size, d]. All three are one kernel: a place is base + index · stride + plane · stride.
Bytes are moved as they are, 16 at a time per thread, so every dtype is the same launch. ``content`` may be
pinned host memory: then the kernel is the swap.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from headway.kernels.cases import Case, Outputs, Trial
from headway.kernels.launch import Chip, Counts, Launch, chip_of
from headway.kernels.triton_language import Operand, constexpr, jit, tl

TILE_WORDS = 4096
"""32-bit words per program: 16 KiB, enough loads under way to fill a memory channel's latency."""


def gather_blocks_reference(pools: Tensor, blocks: Tensor) -> Tensor:
    """The formula as torch operators."""
    return pools.index_select(2, blocks).permute(2, 0, 1, 3, 4, 5).contiguous()


def scatter_blocks_reference(pools: Tensor, blocks: Tensor, content: Tensor) -> None:
    """The formula as torch operators."""
    pools.index_copy_(2, blocks, content.permute(1, 2, 0, 3, 4, 5))


def gather_blocks(pools: Tensor, blocks: Tensor, out: Tensor | None = None) -> Tensor:
    """A copy of whole blocks [n, *block shape]; blocks int64 [n]. ``out``: device or pinned memory."""
    if pools.device.type != "cuda":
        content = gather_blocks_reference(pools, blocks)
        return content if out is None else out.copy_(content)
    if out is None:
        out = pools.new_empty((len(blocks), *_block_shape(pools)))
    gather_blocks_launch(pools, blocks, out, chip=chip_of(pools.device)).run()
    return out


def scatter_blocks(pools: Tensor, blocks: Tensor, content: Tensor) -> None:
    """Write ``content`` [n, *block shape], in device or pinned memory, to ``blocks`` int64 [n]."""
    if pools.device.type != "cuda":
        scatter_blocks_reference(pools, blocks, content)
        return
    scatter_blocks_launch(pools, blocks, content, chip=chip_of(pools.device)).run()


def copy_blocks(pools: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Copy whole blocks within the pools, int64 [n] to int64 [n]; no block is both source and target."""
    if pools.device.type != "cuda":
        scatter_blocks_reference(pools, targets, gather_blocks_reference(pools, sources))
        return
    copy_blocks_launch(pools, sources, targets, chip=chip_of(pools.device)).run()


@jit
def _block_copy_kernel(
    source: Operand,
    source_blocks: Operand,
    source_block_stride: Operand,
    source_plane_stride: Operand,
    target: Operand,
    target_blocks: Operand,
    target_block_stride: Operand,
    target_plane_stride: Operand,
    row_words: Operand,
    TILE: constexpr,
) -> None:
    place = tl.program_id(0)
    plane = tl.program_id(1).to(tl.int64)
    # None: content, whose rows are in the order of the list.
    from_block = place.to(tl.int64) if source_blocks is None else tl.load(source_blocks + place)
    to_block = place.to(tl.int64) if target_blocks is None else tl.load(target_blocks + place)
    words = tl.program_id(2) * TILE + tl.arange(0, TILE)
    inside = words < row_words
    source += from_block * source_block_stride + plane * source_plane_stride
    target += to_block * target_block_stride + plane * target_plane_stride
    tl.store(target + words, tl.load(source + words, mask=inside), mask=inside)


@dataclass(frozen=True, slots=True)
class _Place:
    """One side of a copy, in words."""

    words: Tensor
    blocks: Tensor | None
    block_stride: int
    plane_stride: int


def gather_blocks_launch(pools: Tensor, blocks: Tensor, out: Tensor, *, chip: Chip) -> Launch:
    """pools and out contiguous."""
    return _launch(pools, _of_pools(pools, blocks), _of_content(pools, out), len(blocks), chip)


def scatter_blocks_launch(pools: Tensor, blocks: Tensor, content: Tensor, *, chip: Chip) -> Launch:
    """pools and content contiguous."""
    return _launch(pools, _of_content(pools, content), _of_pools(pools, blocks), len(blocks), chip)


def copy_blocks_launch(pools: Tensor, sources: Tensor, targets: Tensor, *, chip: Chip) -> Launch:
    """pools contiguous."""
    return _launch(pools, _of_pools(pools, sources), _of_pools(pools, targets), len(sources), chip)


def _launch(pools: Tensor, source: _Place, target: _Place, count: int, chip: Chip) -> Launch:
    planes, row = pools.shape[0] * pools.shape[1], _row_words(pools)
    return Launch(
        kernel=_block_copy_kernel,
        grid=(count, planes, -(-row // TILE_WORDS)),
        arguments={
            "source": source.words,
            "source_blocks": source.blocks,
            "source_block_stride": source.block_stride,
            "source_plane_stride": source.plane_stride,
            "target": target.words,
            "target_blocks": target.blocks,
            "target_block_stride": target.block_stride,
            "target_plane_stride": target.plane_stride,
            "row_words": row,
        },
        constants={"TILE": TILE_WORDS},
        num_warps=256 // chip.warp_size,
    )


def _of_pools(pools: Tensor, blocks: Tensor) -> _Place:
    row = _row_words(pools)
    return _Place(_as_words(pools), blocks, row, pools.shape[2] * row)


def _of_content(pools: Tensor, content: Tensor) -> _Place:
    row = _row_words(pools)
    return _Place(_as_words(content), None, pools.shape[0] * pools.shape[1] * row, row)


def _as_words(tensor: Tensor) -> Tensor:
    return tensor.view(-1).view(torch.int32)


def _row_words(pools: Tensor) -> int:
    """One block of one plane in 32-bit words: block sizes are even, so there are no halves."""
    return pools.shape[3] * pools.shape[4] * pools.shape[5] * pools.element_size() // 4


def _block_shape(pools: Tensor) -> tuple[int, ...]:
    layers, sides, _, heads, size, width = pools.shape
    return layers, sides, heads, size, width


def block_copy_counts(layers: int, row_bytes: int, count: int) -> Counts:
    """Every byte of ``count`` blocks read once and written once; one index each."""
    moved = count * layers * 2 * row_bytes
    return Counts(moved + 8 * count, moved, 0)


def _prepare_gather(device: torch.device, chip: Chip, *, shape: tuple[int, ...], count: int) -> Trial:
    pools, blocks = _pools(device, shape), _some_blocks(device, shape, count)
    out = pools.new_empty((count, *_block_shape(pools)))

    def launch() -> Outputs:
        gather_blocks_launch(pools, blocks, out, chip=chip).run()
        return (out,)

    return Trial(launch, lambda: (gather_blocks_reference(pools, blocks),))


def _prepare_scatter(device: torch.device, chip: Chip, *, shape: tuple[int, ...], count: int) -> Trial:
    pools, blocks = _pools(device, shape), _some_blocks(device, shape, count)
    content = torch.ones((count, *_block_shape(pools)), dtype=pools.dtype, device=device)
    expected = pools.clone()

    def launch() -> Outputs:
        scatter_blocks_launch(pools, blocks, content, chip=chip).run()
        return (pools,)

    def reference() -> Outputs:
        scatter_blocks_reference(expected, blocks, content)
        return (expected,)

    return Trial(launch, reference)


def _prepare_copy(device: torch.device, chip: Chip, *, shape: tuple[int, ...], count: int) -> Trial:
    pools, blocks = _pools(device, shape), _some_blocks(device, shape, 2 * count)
    expected, sources, targets = pools.clone(), blocks[:count], blocks[count:]

    def launch() -> Outputs:
        copy_blocks_launch(pools, sources, targets, chip=chip).run()
        return (pools,)

    def reference() -> Outputs:
        scatter_blocks_reference(expected, targets, gather_blocks_reference(expected, sources))
        return (expected,)

    return Trial(launch, reference)


def _pools(device: torch.device, shape: tuple[int, ...]) -> Tensor:
    count = 1
    for side in shape:
        count *= side
    return torch.arange(count, device=device).remainder(251).to(torch.bfloat16).view(shape)


def _some_blocks(device: torch.device, shape: tuple[int, ...], count: int) -> Tensor:
    """Distinct blocks, not neighbours: 7 is coprime to the pools' sizes."""
    return torch.arange(count, device=device) * 7 % shape[2]


def _cases(label: str, shape: tuple[int, ...], count: int, *, tiny: bool = False) -> tuple[Case, ...]:
    counts = block_copy_counts(shape[0], shape[3] * shape[4] * shape[5] * 2, count)
    prepared = {"gather": _prepare_gather, "scatter": _prepare_scatter, "copy": _prepare_copy}
    return tuple(
        Case(
            f"block {name}",
            label,
            counts,
            partial(prepare, shape=shape, count=count),
            tiny=tiny,
        )
        for name, prepare in prepared.items()
    )


CASES = (
    *_cases("Llama 3 8B, 64 blocks of 16", (32, 2, 1024, 8, 16, 128), 64),
    *_cases("SmolLM2 135M, 64 blocks of 16", (30, 2, 1024, 3, 16, 64), 64),
    *_cases("tiny", (2, 2, 9, 1, 4, 6), 4, tiny=True),
)
