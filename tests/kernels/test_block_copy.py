"""Block copies, in the interpreter, against torch's indexing: each byte in its place, no other touched."""

from __future__ import annotations

import pytest
import torch

from headway.kernels.block_copy import (
    copy_blocks_launch,
    gather_blocks,
    gather_blocks_launch,
    scatter_blocks,
    scatter_blocks_launch,
)
from headway.kernels.launch import H100

pytest.importorskip("triton")

SHAPES = [(1, 2, 5, 1, 2, 2), (2, 2, 7, 3, 16, 64), (1, 2, 6, 5, 34, 10)]
"""[layers, 2, blocks, kv_heads, block_size, d]: a row of a few words, of less and of more than a tile."""


def make_pools(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return (torch.arange(count) * 37 % 241).to(torch.uint8).view(shape).to(dtype)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn])
def test_gather_and_scatter_are_each_others_inverse(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if shape[3] * shape[4] * shape[5] * dtype.itemsize % 4:
        pytest.skip("a block is whole words")
    pools = make_pools(shape, dtype)
    blocks = torch.tensor([4, 0, 3])
    out = torch.empty((3, *shape[:2], *shape[3:]), dtype=dtype)
    gather_blocks_launch(pools, blocks, out, chip=H100).run()
    plain = pools.view(torch.uint8)
    assert torch.equal(out.view(torch.uint8), plain[:, :, blocks].permute(2, 0, 1, 3, 4, 5))
    target = torch.zeros_like(pools)
    scatter_blocks_launch(target, blocks, out, chip=H100).run()
    assert torch.equal(target.view(torch.uint8)[:, :, blocks], plain[:, :, blocks])
    others = [block for block in range(shape[2]) if block not in {4, 0, 3}]
    assert not bool(target.view(torch.uint8)[:, :, others].any())


def test_copies_within_the_pools_leave_all_other_blocks_alone() -> None:
    pools = make_pools(SHAPES[1], torch.bfloat16)
    expected = pools.clone()
    expected[:, :, [6, 0]] = pools[:, :, [1, 5]]
    copy_blocks_launch(pools, torch.tensor([1, 5]), torch.tensor([6, 0]), chip=H100).run()
    assert torch.equal(pools, expected)


def test_on_a_cpu_the_same_calls_are_torchs() -> None:
    pools = make_pools(SHAPES[1], torch.bfloat16)
    blocks = torch.tensor([2, 5])
    content = gather_blocks(pools, blocks, torch.empty(2, 2, 2, 3, 16, 64, dtype=torch.bfloat16))
    other = torch.zeros_like(pools)
    scatter_blocks(other, blocks, content)
    assert torch.equal(other[:, :, blocks], pools[:, :, blocks])
