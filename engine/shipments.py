"""Copies of blocks on their way: each travels with plans until one that carries it has been executed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from headway.engine.values import BlockCopy, StepPlan


@dataclass(slots=True)
class _Kind:
    """Copies of one kind that no applied plan has carried yet, each with the step that planned it."""

    entries: list[tuple[int, BlockCopy]]

    def after(self, step: int) -> tuple[BlockCopy, ...]:
        return tuple([copy for planned, copy in self.entries if planned > step])

    def forget(self, step: int) -> None:
        self.entries = [entry for entry in self.entries if entry[0] > step]


class Shipments:
    """Swaps both ways, and copies from block to block for forks."""

    def __init__(self) -> None:
        self._out, self._in, self._across = _Kind([]), _Kind([]), _Kind([])
        self._carried: dict[int, int] = {}
        """Steps that planned swaps, to the last plan that carries them, until those are complete."""
        self._last_swap_step = 0
        self.copied_step = 0
        """Swaps planned up to this step are complete."""

    @property
    def is_swapping(self) -> bool:
        """Whether a swap is planned or under way."""
        return self._last_swap_step > self.copied_step

    def swap_out(self, copies: Iterable[BlockCopy], step: int) -> None:
        """Device blocks to host slots, in ``step``."""
        self._out.entries += [(step, copy) for copy in copies]
        self._last_swap_step = step

    def swap_in(self, copies: Iterable[BlockCopy], step: int) -> None:
        """Host slots to device blocks, in ``step``."""
        self._in.entries += [(step, copy) for copy in copies]
        self._last_swap_step = step

    def copy(self, copy: BlockCopy, step: int) -> None:
        """One device block to another, in ``step``, before anything is computed there."""
        self._across.entries.append((step, copy))

    def load(self, plan: StepPlan, after: int) -> StepPlan:
        """The plan with all copies that no applied plan has carried yet, so a dropped plan loses none.

        ``after``: the step under way, which carries its own.
        """
        if not (self._out.entries or self._in.entries or self._across.entries):
            return plan
        for step, _ in (*self._out.entries, *self._in.entries):
            if step > after:
                self._carried[step] = plan.step
        return replace(
            plan,
            swaps_out=self._out.after(after),
            copies=self._across.after(after),
            swaps_in=self._in.after(after),
        )

    def land(self, plan: StepPlan, copied_step: int | None) -> int:
        """The plan was executed, swaps up to ``copied_step`` (None: its own) too; up to which safely so."""
        for kind in (self._out, self._in, self._across):
            if kind.entries:
                kind.forget(plan.step)
        copied = plan.step if copied_step is None else copied_step
        if self._carried:
            # A swap that a later plan carries again (the first was dropped, or its result is late) is done
            # once more with that one: until then nobody may touch its blocks and slots.
            self._carried = {step: carrier for step, carrier in self._carried.items() if carrier > copied}
            copied = min(self._carried, default=copied + 1) - 1
        self.copied_step = max(self.copied_step, copied)
        return self.copied_step
