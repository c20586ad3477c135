"""A few tiles for ``scaled_matmul``, of which a chip says which is the fastest (``tile_trials``).

    up to 64 rows   narrow   half the outputs, by two warps: more programs, each with less to wait for
                    short    half of K at a time: less shared memory, more programs on a processor
                    wide     twice the outputs, by eight warps: activations are read half as often
    up to 128       half     half the outputs: more programs where the weight has few
                    square   the tile for more rows: weights are read once
    more            tall     half the rows, by four warps: two programs where one was
                    deep     one more stage of the pipeline

Each holds its pipeline in the chip's shared memory, and is compiled for every chip without spilling
(``tests/kernels/test_compile.py``). ``fixed_matmul`` has one tile and none of this: in which order it adds
may not depend on a measurement.
"""

from __future__ import annotations

from dataclasses import replace

from headway.kernels.launch import DEFAULT_TILE, Chip
from headway.kernels.scaled_matmul import SPLIT_ROWS, MatmulTile, matmul_tile

ROW_CLASSES = (16, 32, SPLIT_ROWS, 128, 512)
"""Most rows of products that share their tiles; more than the last are of its class."""


def row_class(rows: int) -> int:
    """The class that so many rows are of."""
    return next((most for most in ROW_CLASSES if rows <= most), ROW_CLASSES[-1])


def matmul_tiles(rows: int, x_bytes: int, chip: Chip) -> dict[str, MatmulTile]:
    """By name, today's first; ``x_bytes`` of an activation."""
    tile = matmul_tile(rows, x_bytes, chip)
    is_cuda = chip.backend == "cuda"
    if rows <= SPLIT_ROWS:
        others = {
            "narrow": replace(tile, columns=tile.columns // 2, num_warps=tile.num_warps // 2),
            "short": replace(tile, depth=tile.depth // 2),
        }
        if not (is_cuda and int(chip.architecture) >= 100 and rows > 32):  # there Blackwell spills
            others["wide"] = replace(tile, columns=2 * tile.columns, num_warps=2 * tile.num_warps)
    elif rows <= 128:
        others = {"half": replace(tile, columns=tile.columns // 2), "square": matmul_tile(512, x_bytes, chip)}
    else:
        others = {"tall": matmul_tile(128, x_bytes, chip)}
        if is_cuda:
            others["deep"] = replace(tile, num_stages=tile.num_stages + 1)
    return {DEFAULT_TILE: tile} | {
        name: other for name, other in others.items() if _fits(other, x_bytes, chip)
    }


def _fits(tile: MatmulTile, x_bytes: int, chip: Chip) -> bool:
    """Does the chip's shared memory hold its stages?"""
    return tile.num_stages * tile.depth * (tile.columns + tile.rows * x_bytes) <= chip.shared_bytes
