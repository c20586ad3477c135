"""Where the inputs of fused steps lie: a bucket's at the same place every time, a large step's somewhere."""

from __future__ import annotations

from dataclasses import replace

import torch

from headway.engine.fused_sampler import FusedSampler
from headway.engine.fused_step import Bucket, input_fields
from headway.engine.step_buffers import Placement, StepBuffers

KEPT_BYTES = 4 << 20
"""Of a step's inputs that are kept for graphs: 512 tokens and block tables of a million positions."""


class FusedPlaces:
    """Placements by bucket. A graph reads from the addresses it was recorded with, so they never change."""

    def __init__(self, device: torch.device, sampler: FusedSampler) -> None:
        self._buffers = StepBuffers(KEPT_BYTES, device)
        self._sampler = sampler
        self._placements: dict[Bucket, Placement] = {}

    def place(self, bucket: Bucket, lines: int) -> tuple[Bucket, Placement]:
        """Of a step with ``lines`` of block tables; its bucket is no longer kept if they are too many."""
        if bucket.is_kept:
            placement = self._placements.get(bucket) or self._keep(bucket)
            if placement.rows >= lines:
                return bucket, placement
        apart = replace(bucket, is_kept=False)
        fields, tables = input_fields(apart, lines)
        return apart, self._buffers.place_apart((*fields, *self._sampler.fields(apart), tables))

    def _keep(self, bucket: Bucket) -> Placement:
        """With as many lines as there is room for."""
        inputs, tables = input_fields(bucket, 0)
        fields = (*inputs, *self._sampler.fields(bucket))
        room = max(0, self._buffers.rows_left(fields, tables))
        whole = replace(tables, shape=(room, *tables.shape[1:]))
        placement = self._placements[bucket] = self._buffers.place((*fields, whole))
        return placement
