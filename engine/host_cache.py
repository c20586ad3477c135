"""KV blocks in host memory, and their way there and back.

A slot holds one block of all layers in one piece, ``[layers, 2, kv_heads, block_size, head_dim]``, so a copy
is long wherever slots are neighbours. With a GPU the slots are pinned and a bus copies beside the steps:

    out   gathered in its step, before later steps write the blocks ──bus──► slots
    in    slots ──bus──► a buffer, scattered by the first step after it has arrived

On a CPU all of it is done at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from headway.engine.copy_bus import Bus, Ticket
from headway.engine.kv_cache import KVCache, zeros
from headway.engine.values import BlockCopy, CopyTime, StepPlan
from headway.kernels.host_arrays import to_device


@dataclass(frozen=True, slots=True)
class _Transfer:
    """Copies of ``step`` on the bus. ``content`` lives as long; it goes to ``blocks`` when it has arrived."""

    step: int
    ticket: Ticket
    content: Tensor
    blocks: Tensor | None = None


class HostCache:
    """``slot_count`` slots beside one KV cache; 0: only device blocks are copied. ``bus`` None: no bus."""

    def __init__(
        self, cache: KVCache, slot_count: int, clock: Callable[[], float], bus: Bus | None = None
    ) -> None:
        self.slot_count = slot_count
        self._cache = cache
        self._device = cache.pools.device
        shape = (slot_count, *cache.block_shape)
        self._slots = (
            torch.empty(shape, dtype=cache.pools.dtype, pin_memory=True)
            if self._device.type == "cuda" and slot_count > 0
            else zeros(shape, cache.pools.dtype, torch.device("cpu"))
        )
        self._bus = bus
        self._clock = clock
        self._transfers: list[_Transfer] = []
        self._times: list[CopyTime] = []

    @property
    def is_idle(self) -> bool:
        """Whether no swap is under way and none is left to be told."""
        return not self._transfers and not self._times

    def move(self, plan: StepPlan) -> None:
        """Do a plan's copies, ordered after the steps before and before its chunks."""
        self._receive_arrived()
        if plan.swaps_out:
            self._send(plan.swaps_out, plan.step)
        if plan.copies:
            self._cache.copy([copy.source for copy in plan.copies], [copy.target for copy in plan.copies])
        if plan.swaps_in:
            self._fetch(plan.swaps_in, plan.step)

    def copied_step(self, step: int, *, wait: bool = False) -> int:
        """Swaps up to the step returned are complete, with ``step`` the last one that was run."""
        if not self._transfers:
            return step
        for transfer in self._transfers if wait else ():
            transfer.ticket.wait()
        self._receive_arrived()
        return min((transfer.step for transfer in self._transfers), default=step + 1) - 1

    def wait(self, step: int) -> None:
        """Return when the swaps of plans up to this step are complete."""
        for transfer in self._transfers:
            if transfer.step <= step:
                transfer.ticket.wait()
        self._receive_arrived()

    def take_times(self) -> tuple[CopyTime, ...]:
        """How long the swaps took that were found complete since the last call."""
        times, self._times = tuple(self._times), []
        return times

    def _send(self, copies: Sequence[BlockCopy], step: int) -> None:
        started = self._clock()
        content = self._cache.gather([copy.source for copy in copies])
        slots = [copy.target for copy in copies]
        if self._bus is None:
            self._slots[slots] = content
            self._times.append(CopyTime(step, True, len(slots), self._clock() - started))
            return

        def copy() -> None:
            for first, last, slot in _runs(slots):
                self._slots[slot : slot + last - first].copy_(content[first:last], non_blocking=True)

        self._transfers.append(_Transfer(step, self._bus.carry(copy), content))

    def _fetch(self, copies: Sequence[BlockCopy], step: int) -> None:
        started = self._clock()
        slots = [copy.source for copy in copies]
        blocks = to_device(np.array([copy.target for copy in copies], dtype=np.int64), self._device)
        if self._bus is None:
            self._cache.scatter(blocks, self._slots[slots])
            self._times.append(CopyTime(step, False, len(slots), self._clock() - started))
            return
        content = torch.empty(
            (len(slots), *self._cache.block_shape), dtype=self._slots.dtype, device=self._device
        )

        def copy() -> None:
            for first, last, slot in _runs(slots):
                content[first:last].copy_(self._slots[slot : slot + last - first], non_blocking=True)

        self._transfers.append(_Transfer(step, self._bus.carry(copy), content, blocks))

    def _receive_arrived(self) -> None:
        under_way: list[_Transfer] = []
        for transfer in self._transfers:
            if not transfer.ticket.is_done:
                under_way.append(transfer)
                continue
            is_out, count = transfer.blocks is None, len(transfer.content)
            seconds = transfer.ticket.seconds
            self._times.append(CopyTime(transfer.step, is_out, count, seconds, is_beside=True))
            if transfer.blocks is not None:
                self._cache.scatter(transfer.blocks, transfer.content)
        self._transfers = under_way


def _runs(slots: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Neighbouring slots as (first place, place after the last, first slot)."""
    first = 0
    for place in range(1, len(slots) + 1):
        if place == len(slots) or slots[place] != slots[place - 1] + 1:
            yield first, place, slots[first]
            first = place
