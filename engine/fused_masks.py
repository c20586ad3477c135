"""Masks on a GPU: the model's logits wait in a place of their own until the host knows what may be chosen.

    host     launch forward N+1 ─► hear N ─► masks N+1 ─► copy up ─► launch mask and choice N+1
    device   ═══ N ══════════╪═══════════ forward N+1 ═══════════════╪══ choose N+1 ══

The forward pass does not need the masks, so it is launched first, as a graph; a constrained token that only
the device knows is heard, and its mask made, while the device is busy with that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.engine.fused_results import FusedRow
from headway.engine.step_buffers import PIECES
from headway.engine.token_masks import WORD_BITS, MaskMaker, StepMasks, wishes_of
from headway.kernels.host_arrays import as_array
from headway.kernels.launch import next_power_of_two
from headway.kernels.token_mask import token_mask_launch

FEWEST_ROWS = 16


class FusedMasks:
    """Logits of steps with constrained rows, and what masks them. Memory is taken when the first one
    comes."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._words = -(-vocab_size // WORD_BITS)
        self._device = device
        self._logits = torch.empty((0, vocab_size), dtype=torch.float32, device=device)
        self._make_masks(0)

    def make_room(self, rows: int) -> bool:
        """Have memory for the logits of so many rows; True: they lie elsewhere now."""
        before = len(self._logits)
        if rows <= before:
            return False
        shape = (max(FEWEST_ROWS, next_power_of_two(rows)), self._vocab_size)
        self._logits = torch.empty(shape, dtype=torch.float32, device=self._device)
        return before > 0

    def compile(self) -> None:
        """Launch the kernel once, where it forbids one row nothing."""
        row = torch.empty((1, self._vocab_size), dtype=torch.float32, device=self._device)
        bits = torch.full((1, self._words), -1, dtype=torch.int32, device=self._device)
        token_mask_launch(row, bits, torch.zeros_like(bits[:, 0])).run()

    def keep(self, logits: Tensor) -> None:
        """Launch: the logits [rows, vocab] of a step wait here."""
        self._logits[: len(logits)].copy_(logits)

    def masked(self, bucket_rows: int, rows: Sequence[FusedRow], maker: MaskMaker, piece: int) -> Tensor:
        """Launch: the kept logits, less what their rows may not choose. GrammarError: a row cannot go on."""
        masks = maker.begin(
            wishes_of([(row.request.grammar, row.request.sampling, row.index, row.guessed) for row in rows])
        )
        places = [i for i, row in enumerate(rows) if row.request.grammar is not None]
        logits = self._logits[:bucket_rows]
        bits, at = self._upload(masks, places, piece)
        token_mask_launch(logits, bits, at).run()
        return logits

    def _upload(self, masks: StepMasks, places: Sequence[int], piece: int) -> tuple[Tensor, Tensor]:
        """(bits, rows) on the device; from pinned memory that a step before the last has read already."""
        count = len(places)
        if count > len(self._bits):
            self._make_masks(max(FEWEST_ROWS, next_power_of_two(count)))
        given: tuple[NDArray[np.int32], NDArray[np.int32]] = (
            masks.wait().bits,
            np.array(places, dtype=np.int32),
        )
        for array, host, near in zip(given, self._hosts[piece], (self._bits, self._rows), strict=True):
            as_array(host)[:count] = array
            near[:count].copy_(host[:count], non_blocking=True)
        return self._bits[:count], self._rows[:count]

    def _make_masks(self, rows: int) -> None:
        is_pinned = self._device.type == "cuda"

        def whole(*shape: int, device: torch.device, pinned: bool = False) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device, pin_memory=pinned)

        host = torch.device("cpu")
        self._bits = whole(rows, self._words, device=self._device)
        self._rows = whole(rows, device=self._device)
        self._hosts = [
            (
                whole(rows, self._words, device=host, pinned=is_pinned),
                whole(rows, device=host, pinned=is_pinned),
            )
            for _ in range(PIECES)
        ]
