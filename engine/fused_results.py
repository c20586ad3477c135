"""What a step chooses: tokens and log-probabilities of its rows, from the device to the engine's values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from headway.engine.drafts import drafts_of, right_tokens, sampling_rows
from headway.engine.fused_request import FusedRequest
from headway.engine.fused_step import Bucket
from headway.engine.sampler import likely
from headway.engine.step_buffers import Wait
from headway.engine.values import Chunk, Logprobs, RequestKey, Sampled, StepPlan
from headway.kernels.host_arrays import float_list, float_rows, int_list, int_rows


@dataclass(frozen=True, slots=True)
class FusedRow:
    """One row of logits: whose it is, and which token of the answer it chooses (0-based)."""

    request: FusedRequest
    index: int
    guessed: tuple[int, ...] = ()
    """Guesses between the last known token and this row (see ``drafts``)."""


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step that the device works on."""

    plan: StepPlan
    rows: tuple[FusedRow, ...]
    has_logprobs: bool
    piece: int
    """Which of the pinned pieces hold its inputs and its results."""
    arrived: Wait
    """Returns when its results are on the host."""
    started: float
    launched: float


def rows_of(request: FusedRequest, chunk: Chunk) -> list[FusedRow]:
    """The rows of a chunk that samples: behind its last known token, and behind each guess."""
    index, drafts = request.index_after(chunk), drafts_of(chunk)
    return [FusedRow(request, index + place, drafts[:place]) for place in range(sampling_rows(chunk))]


def chosen_rows(chunks: Sequence[Chunk]) -> dict[tuple[RequestKey, int], int]:
    """By request and position: the row that chooses the token. Behind guesses the position is not known."""
    found: dict[tuple[RequestKey, int], int] = {}
    row = 0
    for chunk in chunks:
        if chunk.samples and not chunk.draft_tokens:
            found[chunk.key, chunk.start + len(chunk.token_ids)] = row
        row += sampling_rows(chunk)
    return found


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """What the kernels write, on the device: for each row its token, and log-probabilities if wanted."""

    tokens: Tensor
    """[rows] int64."""
    picked: Tensor
    """[rows] float32."""
    top_values: Tensor
    """[rows, top] float32, best first."""
    top_ids: Tensor
    """[rows, top] int64."""

    @classmethod
    def make(cls, rows: int, top: int, device: torch.device, *, pinned: bool = False) -> ChosenRows:
        """Room for so many."""

        def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device, pin_memory=pinned)

        return cls(
            tokens=zeros(torch.int64, rows),
            picked=zeros(torch.float32, rows),
            top_values=zeros(torch.float32, rows, top),
            top_ids=zeros(torch.int64, rows, top),
        )

    @property
    def room(self) -> tuple[int, int]:
        """(rows, top)"""
        return len(self.tokens), self.top_values.shape[1]

    def copy_from(self, source: ChosenRows, bucket: Bucket) -> None:
        """Fetch what a step of this bucket wrote; waits for nothing."""
        self.tokens[: bucket.rows].copy_(source.tokens[: bucket.rows], non_blocking=True)
        if bucket.top_logprobs is not None:
            self.picked[: bucket.rows].copy_(source.picked[: bucket.rows], non_blocking=True)
            # Whole rows, so that each is one piece: a part of every row would be copied row by row.
            self.top_values[: bucket.rows].copy_(source.top_values[: bucket.rows], non_blocking=True)
            self.top_ids[: bucket.rows].copy_(source.top_ids[: bucket.rows], non_blocking=True)

    def read(
        self, chunks: Sequence[Chunk], rows: Sequence[FusedRow], *, has_logprobs: bool
    ) -> tuple[Sampled, ...]:
        """What counts of what was fetched: up to each chunk's first wrong guess. The requests learn of it."""
        tokens = int_list(self.tokens[: len(rows)])
        logprobs = self._logprobs(rows) if has_logprobs else [None] * len(rows)
        sampled = [
            Sampled(row.request.key, token, told)
            for row, token, told in zip(rows, tokens, logprobs, strict=True)
        ]
        kept: list[Sampled] = []
        first = 0
        sampling = [chunk for chunk in chunks if chunk.samples]
        for chunk, entries in zip(sampling, right_tokens(chunks, sampled), strict=True):
            for row, entry in zip(rows[first : first + len(entries)], entries, strict=True):
                row.request.hear(row.index, entry.token_id)
            kept += entries
            first += sampling_rows(chunk)
        return tuple(kept)

    def _logprobs(self, rows: Sequence[FusedRow]) -> list[Logprobs | None]:
        count = len(rows)
        picked, values = float_list(self.picked[:count]), float_rows(self.top_values[:count])
        ids = int_rows(self.top_ids[:count])
        return [
            None
            if (top := row.request.sampling.logprobs) is None
            else Logprobs(picked[i], likely(ids[i][:top], values[i][:top]))
            for i, row in enumerate(rows)
        ]
