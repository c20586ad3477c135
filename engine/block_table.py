"""Who holds blocks: the table of a running request, and the hold of a swap under way."""

from __future__ import annotations


class BlockTable:
    """The blocks of one running request, in the order of its tokens.

    ``blocks`` is replaced only when it grows, so ``is`` tells a change.
    """

    __slots__ = ("blocks", "last_step", "published_blocks", "reserved_blocks", "resets", "swap_step")

    def __init__(self, reserved_blocks: int, prefix: tuple[int, ...] = (), resets: int = 0) -> None:
        self.blocks = prefix
        self.reserved_blocks = reserved_blocks
        self.published_blocks = len(prefix)
        """Its first so many blocks are in the prefix cache's map."""
        self.resets = resets
        """The cache's resets when its KV was begun: after another one it belongs to old weights."""
        self.last_step = 0
        """The last planned step that touches its blocks: their fence."""
        self.swap_step = 0
        """The step whose swap fills its blocks: before that is complete they hold nothing."""


class CopyHold:
    """The references of one swap to the device blocks it reads or writes, until the swap is complete."""

    __slots__ = ("blocks", "last_step", "step")

    def __init__(self, blocks: tuple[int, ...], step: int, last_step: int) -> None:
        self.blocks = blocks
        self.step = step
        self.last_step = last_step
