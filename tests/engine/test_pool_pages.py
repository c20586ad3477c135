"""Pages of the KV pool are there before a step writes to them, and what has been written stays."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.engine.test_torch_runner import CONFIG

from headway.engine.kv_cache import KVCache
from headway.engine.pool_pages import PIECE_BYTES, PoolPages
from headway.services.pages_ahead import SPARE_BYTES, PagesAhead

LEAD_BYTES = 4 * PIECE_BYTES


def cache(block_count: int) -> KVCache:
    device = torch.device("cpu")
    return KVCache(CONFIG, block_count=block_count, block_size=16, dtype=torch.bfloat16, device=device)


def need(is_provided: bool) -> None:
    """Skips where the system provides no pages; in CI it does, and one that does not is a mistake of ours."""
    told = "this system provides no pages on demand (Linux before 5.14)"
    if not is_provided and os.environ.get("CI"):
        pytest.fail(told)
    if not is_provided:
        pytest.skip(told)


def first_touches(write: Callable[[], object]) -> int:
    """The process's page faults meanwhile."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    write()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_blocks_that_were_provided_cost_no_first_touch_and_keep_their_contents() -> None:
    each = cache(1).pools.nbytes
    regions = cache(1).pools.shape[0] * 2
    own = cache(8 * PIECE_BYTES * regions // each)  # eight pieces of each region
    own.pools[:, :, 0] = 3
    other = cache(own.block_count)  # nobody provides this one; and the code's own first touches are past
    assert first_touches(lambda: other.pools[:, :, 1:].fill_(1)) >= 8 * regions
    pages = PoolPages(own.pools)
    need(pages.provide())
    half = pages.provided_blocks
    assert 0 < half < pages.block_count
    assert first_touches(lambda: own.pools[:, :, 1:half].fill_(1)) < 8
    while pages.provide():
        pass
    assert pages.provided_blocks == pages.block_count
    assert first_touches(lambda: own.pools[:, :, half:].fill_(1)) < 8
    assert bool((own.pools[:, :, 0] == 3).all())


def test_a_pool_takes_no_memory_that_the_process_had_before() -> None:
    """An allocator that has much to reuse would hand it out, and clear all of it at once."""
    np.empty(31 << 20, dtype=np.uint8)[:] = 1  # glibc now keeps what is smaller for itself
    pieces = [np.ones(16 << 20, dtype=np.uint8) for _ in range(16)]
    last = np.ones(1 << 20, dtype=np.uint8)  # nothing before it goes back to the system
    del pieces
    own = cache(8 * PIECE_BYTES * 4 // cache(1).pools.nbytes)
    assert first_touches(lambda: own.pools.fill_(1)) >= own.pools.nbytes // PIECE_BYTES
    assert last.all()


def test_so_much_is_ready_beyond_what_is_in_use_and_never_the_last_memory() -> None:
    own = cache(16 * LEAD_BYTES // cache(1).pools.nbytes)  # it takes memory only as it is provided
    pages = PoolPages(own.pools)
    used, available = 0, SPARE_BYTES - 1
    ahead = PagesAhead(pages, lambda: used, lambda: available, lead_bytes=LEAD_BYTES)
    assert ahead.look()
    assert pages.provided_blocks == 0
    available = 1 << 40
    need(ahead.look())
    lead = pages.provided_blocks
    assert lead * pages.block_bytes >= LEAD_BYTES - pages.block_bytes
    assert pages.provided_blocks < pages.block_count // 2
    used = pages.block_count // 4
    ahead.look()
    assert pages.provided_blocks - used >= LEAD_BYTES // pages.block_bytes - 1
    assert pages.provided_blocks < pages.block_count
