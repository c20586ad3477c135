"""q/k norm, rotation and KV write in one pass, interpreted: as exact as apart, into the right places."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from tests.kernels.test_elementwise import assert_no_worse_than_twice, naive_norm
from torch import Tensor

from headway.kernels.launch import H100
from headway.kernels.rope_kv_write import (
    HeadNorms,
    RotaryRows,
    rope_kv_write,
    rope_kv_write_launch,
    rope_kv_write_reference,
)
from headway.kernels.varlen_attention import PagedCache

pytest.importorskip("triton")

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
BLOCKS, BLOCK_SIZE, KV_HEADS, QUERY_HEADS = 6, 4, 2, 5


@dataclass(frozen=True, slots=True)
class Inputs:
    """Random tokens of a fused projection, and where they go."""

    qkv: Tensor
    rotary: RotaryRows
    slots: Tensor
    norms: HeadNorms | None

    @property
    def written(self) -> Tensor:
        return self.slots >= 0

    def cache(self, dtype: torch.dtype, *, scaled: bool = False) -> PagedCache:
        pool = torch.zeros(BLOCKS, KV_HEADS, BLOCK_SIZE, self.qkv.shape[-1]).to(dtype)
        scales = [torch.zeros(pool.shape[:3]) if scaled else None for _ in range(2)]
        return PagedCache(pool, pool.clone(), *scales)

    def placed(self, pool: Tensor) -> Tensor:
        """[written tokens, kv_heads, …] from the pool."""
        slots = self.slots[self.written]
        return pool[slots // BLOCK_SIZE, :, slots % BLOCK_SIZE]


def inputs(dtype: torch.dtype, width: int, *, tokens: int = 7, normed: bool = False) -> Inputs:
    torch.manual_seed(0)
    angles = torch.randn(50, width // 2)
    cos, sin = angles.cos(), angles.sin()
    tables = (torch.cat((cos, cos), 1).to(dtype), torch.cat((-sin, sin), 1).to(dtype))
    slots = torch.randperm(BLOCKS * BLOCK_SIZE)[:tokens]
    slots[2] = -1
    norms = HeadNorms(torch.randn(width).to(dtype), torch.randn(width).to(dtype), 1e-6) if normed else None
    # A view: the projection's rows may be wider than its heads.
    wide = torch.randn(tokens, (QUERY_HEADS + 2 * KV_HEADS) * width + 3).to(dtype)
    qkv = wide.as_strided((tokens, QUERY_HEADS + 2 * KV_HEADS, width), (wide.stride(0), width, 1))
    return Inputs(qkv, RotaryRows(*tables, torch.randint(0, 50, (tokens,))), slots, norms)


def computed(given: Inputs, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Queries and keys, one operation after another, all in ``dtype``."""
    heads = given.qkv[:, :-KV_HEADS].to(dtype)
    queries, keys = heads[:, :QUERY_HEADS], heads[:, QUERY_HEADS:]
    if given.norms is not None:
        queries = naive_norm(queries, given.norms.query.to(dtype), given.norms.eps)
        keys = naive_norm(keys, given.norms.key.to(dtype), given.norms.eps)
    half = given.qkv.shape[-1] // 2
    tables = (given.rotary.cos, given.rotary.signed_sin)
    cos, sin = (table[given.rotary.positions].unsqueeze(1).to(dtype) for table in tables)
    turned = [
        rows * cos + torch.cat((rows[..., half:], rows[..., :half]), dim=-1) * sin for rows in (queries, keys)
    ]
    return turned[0], turned[1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("width", [2, 24, 64, 80])
def test_errs_at_most_twice_as_much_as_one_operation_after_another(
    dtype: torch.dtype, width: int, normed: bool
) -> None:
    given = inputs(dtype, width, normed=normed)
    cache = given.cache(dtype)
    query = rope_kv_write(given.qkv, given.rotary, cache, given.slots, given.norms)
    (naive_query, naive_key), (exact_query, exact_key) = (
        computed(given, number) for number in (dtype, torch.float64)
    )
    assert_no_worse_than_twice(query, naive_query, exact_query)
    kept = given.written
    assert_no_worse_than_twice(given.placed(cache.keys), naive_key[kept], exact_key[kept])
    assert torch.equal(given.placed(cache.values), given.qkv[kept, -KV_HEADS:])


def test_nothing_is_written_but_the_tokens_places() -> None:
    given = inputs(torch.float32, 24)
    cache = given.cache(torch.float32)
    rope_kv_write(given.qkv, given.rotary, cache, given.slots, given.norms)
    for pool in (cache.keys, cache.values):
        assert int(pool.count_nonzero()) == int(given.written.sum()) * KV_HEADS * 24


@pytest.mark.parametrize("dtype", DTYPES)
# Steps from 0 to the row's largest value; e4m3 steps by 32 below its largest, 448.
@pytest.mark.parametrize(("cache_dtype", "steps"), [(torch.int8, 127.0), (torch.float8_e4m3fn, 14.0)])
def test_a_quantized_cache_is_within_half_a_step_of_each_row(
    dtype: torch.dtype, cache_dtype: torch.dtype, steps: float
) -> None:
    given = inputs(dtype, 24, normed=True)
    given.qkv[1, -1] = 0.0  # a row of zeros has a scale, too
    ours, expected = given.cache(cache_dtype, scaled=True), given.cache(cache_dtype, scaled=True)
    rope_kv_write(given.qkv, given.rotary, ours, given.slots, given.norms)
    rope_kv_write_reference(given.qkv, given.rotary, expected, given.slots, given.norms)
    _, exact_key = computed(given, torch.float64)
    kept = given.written
    for pool, scales, exact in (
        (ours.keys, ours.key_scales, exact_key[kept]),
        (ours.values, ours.value_scales, given.qkv[kept, -KV_HEADS:].double()),
    ):
        assert scales is not None
        restored = given.placed(pool).double() * given.placed(scales).double().unsqueeze(-1)
        step = exact.abs().amax(dim=-1, keepdim=True) / steps
        assert bool(((restored - exact).abs() <= 0.51 * step + 1e-12).all())
    assert expected.key_scales is not None
    torch.testing.assert_close(ours.key_scales, expected.key_scales)


def test_a_chunk_in_large_tiles_gives_what_a_decode_batch_gives() -> None:
    given = inputs(torch.bfloat16, 24, tokens=21)
    small, large = given.cache(torch.bfloat16), given.cache(torch.bfloat16)
    queries = [torch.empty(21, QUERY_HEADS, 24, dtype=torch.bfloat16) for _ in range(2)]
    for query, cache, chip in ((queries[0], small, H100), (queries[1], large, replace(H100, processors=0))):
        rope_kv_write_launch(given.qkv, given.rotary, cache, given.slots, query, chip=chip).run()
    assert torch.equal(queries[0], queries[1])
    assert torch.equal(small.keys, large.keys)
    assert torch.equal(small.values, large.values)
