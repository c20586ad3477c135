"""KV blocks in host memory, and their way there and back.

A slot holds one block of all layers in one piece, ``[layers, 2, kv_heads, block_size, head_dim]``, so a copy
is long wherever slots are neighbours. With a GPU the slots are pinned and the bus is used by a stream of its
own: blocks are gathered before later steps write them, and scattered once they have arrived. On a CPU all of
it is done at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.engine.kv_cache import KVCache, zeros
from headway.engine.values import BlockCopy, StepPlan


@dataclass(frozen=True, slots=True)
class _Transfer:
    """Copies on the bus since ``step``; ``content`` has to go to ``blocks`` when it has arrived."""

    step: int
    event: torch.cuda.Event | None
    blocks: Tensor | None = None
    content: Tensor | None = None


class HostCache:
    """``slot_count`` slots beside one KV cache; 0: only device blocks are copied."""

    def __init__(self, cache: KVCache, slot_count: int) -> None:
        self.slot_count = slot_count
        self._cache = cache
        self._device = cache.pools.device
        shape = (slot_count, *cache.block_shape)
        is_pinned = self._device.type == "cuda" and slot_count > 0
        self._slots = (
            torch.empty(shape, dtype=cache.pools.dtype, pin_memory=True)
            if is_pinned
            else zeros(shape, cache.pools.dtype, torch.device("cpu"))
        )
        self._bus = _stream(self._device) if is_pinned else None
        self._transfers: list[_Transfer] = []

    def move(self, plan: StepPlan) -> None:
        """Do a plan's copies, ordered after the steps before and before its chunks."""
        self._scatter_arrived()
        if plan.swaps_out:
            self._send(plan.swaps_out, plan.step)
        if plan.copies:
            self._cache.copy([copy.source for copy in plan.copies], [copy.target for copy in plan.copies])
        if plan.swaps_in:
            self._fetch(plan.swaps_in, plan.step)

    def copied_step(self, step: int, *, wait: bool = False) -> int:
        """Swaps up to the step returned are complete, with ``step`` the last one that was run."""
        for transfer in self._transfers if wait else ():
            if transfer.event is not None:
                transfer.event.synchronize()
        self._scatter_arrived()
        return min((transfer.step for transfer in self._transfers), default=step + 1) - 1

    def _send(self, copies: Sequence[BlockCopy], step: int) -> None:
        content = self._cache.gather([copy.source for copy in copies])
        slots = [copy.target for copy in copies]
        if self._bus is None:
            self._slots[slots] = content
            return
        self._bus.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._bus):
            for first, last, slot in _runs(slots):
                self._slots[slot : slot + last - first].copy_(content[first:last], non_blocking=True)
            # The gathered copy must not be given to anybody else before the bus has read it.
            content.record_stream(self._bus)
            self._transfers.append(_Transfer(step, _mark(self._bus)))

    def _fetch(self, copies: Sequence[BlockCopy], step: int) -> None:
        slots = [copy.source for copy in copies]
        blocks = torch.tensor([copy.target for copy in copies], device=self._device)
        if self._bus is None:
            self._cache.scatter(blocks, self._slots[slots])
            return
        with torch.cuda.stream(self._bus):
            content = torch.empty(
                (len(slots), *self._cache.block_shape), dtype=self._slots.dtype, device=self._device
            )
            for first, last, slot in _runs(slots):
                content[first:last].copy_(self._slots[slot : slot + last - first], non_blocking=True)
            self._transfers.append(_Transfer(step, _mark(self._bus), blocks, content))

    def _scatter_arrived(self) -> None:
        under_way: list[_Transfer] = []
        for transfer in self._transfers:
            if transfer.event is not None and not _has_passed(transfer.event):
                under_way.append(transfer)
            elif transfer.blocks is not None and transfer.content is not None:
                transfer.content.record_stream(torch.cuda.current_stream(self._device))
                self._cache.scatter(transfer.blocks, transfer.content)
        self._transfers = under_way


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves its constructor untyped


def _mark(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves its constructor untyped
    event.record(stream)
    return event


def _has_passed(event: torch.cuda.Event) -> bool:
    return bool(event.query())  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _runs(slots: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Neighbouring slots as (first place, place after the last, first slot)."""
    first = 0
    for place in range(1, len(slots) + 1):
        if place == len(slots) or slots[place] != slots[place - 1] + 1:
            yield first, place, slots[first]
            first = place
