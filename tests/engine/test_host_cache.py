"""Copies of KV blocks on a torch device: every byte, in the plan's order, the same answer after a swap."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from tests.engine.test_torch_runner import CONFIG, PROMPTS, RandomCheckpoint
from torch import Tensor

from headway.engine.copy_bus import CudaBus
from headway.engine.host_cache import HostCache
from headway.engine.kv_cache import KVCache, block_bytes
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import Admitted, BlockCopy, Chunk, RequestKey, Sampling, StepPlan

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors: on shared cores, more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Cache:
    """A KV cache of 8 blocks full of random bits, and 6 slots."""

    def __init__(self, device: str = "cpu", dtype: torch.dtype = torch.float32) -> None:
        place = torch.device(device)
        self.kv = KVCache(CONFIG, block_count=8, block_size=4, dtype=dtype, device=place)
        self.fill()
        bus = CudaBus(place) if place.type == "cuda" else None
        self.host = HostCache(self.kv, 6, itertools.count().__next__, bus)

    def fill(self) -> None:
        width = self.kv.pools.dtype.itemsize
        bits = torch.randint(0, 256, (self.kv.pools.numel() * width,), dtype=torch.uint8)
        self.kv.pools.copy_(bits.view(self.kv.pools.dtype).view(self.kv.pools.shape))

    def bits(self) -> Tensor:
        """All blocks as raw bytes [blocks, bytes], so that NaN equals itself."""
        whole = self.kv.gather(range(self.kv.block_count)).cpu()
        return whole.view(self.kv.block_count, -1).view(torch.uint8)

    def move(self, step: int, **copies: list[tuple[int, int]]) -> None:
        moved = {name: tuple(BlockCopy(*pair) for pair in pairs) for name, pairs in copies.items()}
        self.host.move(StepPlan(step, (), **moved))  # type: ignore[arg-type]  # only copies are given


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_case_26_every_byte_of_a_swap_comes_back(device: str, dtype: torch.dtype) -> None:
    cache = Cache(device, dtype)
    before = cache.bits()
    cache.move(1, swaps_out=[(5, 0), (2, 1), (7, 4)])
    # Overwritten at once: the copy has to be ordered after the plans before and before those after.
    cache.fill()
    assert cache.host.copied_step(1, wait=True) == 1
    cache.move(2, swaps_in=[(4, 0), (0, 1), (1, 6)])
    assert cache.host.copied_step(2, wait=True) == 2
    after = cache.bits()
    assert torch.equal(after[[1, 6, 0]], before[[5, 2, 7]])


@pytest.mark.parametrize("device", DEVICES)
def test_copies_of_one_plan_happen_in_order_out_across_in(device: str) -> None:
    cache = Cache(device)
    before = cache.bits()
    cache.move(1, swaps_out=[(0, 3)])
    cache.host.copied_step(1, wait=True)
    # Block 1 goes to the host before the copy overwrites it, and 2 is copied before the swap overwrites it.
    cache.move(2, swaps_out=[(1, 0)], copies=[(2, 1)], swaps_in=[(3, 2)])
    cache.host.copied_step(2, wait=True)
    cache.move(3, swaps_in=[(0, 7)])
    cache.host.copied_step(3, wait=True)
    after = cache.bits()
    assert torch.equal(after[1], before[2])
    assert torch.equal(after[2], before[0])
    assert torch.equal(after[7], before[1])
    assert torch.equal(after[3:7], before[3:7]), "nothing else moved"


def test_a_fork_copies_whole_blocks_of_all_layers() -> None:
    cache = Cache()
    cache.move(1, copies=[(3, 0), (4, 1)])
    after = cache.bits()
    assert torch.equal(after[[0, 1]], after[[3, 4]])


def load(host_blocks: int, dtype: str = "float32") -> TorchRunner:
    number = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
    size = block_bytes(CONFIG, 4, number)
    return TorchRunner.load(
        RandomCheckpoint(),
        dtype=dtype,
        kv_cache_bytes=24 * size,
        host_cache_bytes=host_blocks * size,
        block_size=4,
    )


def test_the_host_pool_is_sized_in_blocks() -> None:
    assert (load(0).host_slots, load(7).host_slots) == (0, 7)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_case_41_an_answer_after_a_swap_is_the_same_as_without_one(dtype: str) -> None:
    key, prompt = RequestKey("a", 1), PROMPTS[3]
    sampling = Sampling(temperature=1.0, seed=7, logprobs=4)

    def answer(runner: TorchRunner, swap_after: int | None) -> list[object]:
        admitted: tuple[Admitted, ...] = (Admitted(key, prompt, (), sampling),)
        known, computed, said, table = list(prompt), 0, list[object](), tuple(range(8))
        for step in range(1, 11):
            if step - 1 == swap_after:
                used = -(-computed // 4)
                out = tuple(BlockCopy(block, slot) for slot, block in enumerate(table[:used]))
                runner.execute(StepPlan(50, (), swaps_out=out))
                other = RequestKey("other", 1)
                runner.execute(
                    StepPlan(
                        51,
                        (Chunk(other, 0, PROMPTS[5], tuple(range(8)), samples=False),),
                        (Admitted(other, PROMPTS[5], (), Sampling()),),
                    )
                )
                table = tuple(range(20, 12, -1))
                back = tuple(BlockCopy(slot, block) for slot, block in enumerate(table[:used]))
                runner.execute(StepPlan(52, (), swaps_in=back, released=(other,)))
            chunk = Chunk(key, computed, tuple(known[computed:]), table, samples=True)
            (sampled,) = runner.execute(StepPlan(step, (chunk,), admitted)).sampled
            admitted, computed = (), len(known)
            known.append(sampled.token_id)
            said.append(sampled)
        return said

    runner = load(8, dtype)
    # Equal with their logprobs, so bit for bit.
    assert answer(runner, 4) == answer(runner, None)
