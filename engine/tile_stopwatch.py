"""How long one launch takes a GPU, by its own events, with nothing of it in its cache before."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from headway.engine.errors import DeviceLostError
from headway.engine.tile_choice import Measure
from headway.kernels.cases import Trial
from headway.kernels.launch import Chip
from headway.kernels.tile_trials import TileTrial

FLUSH_BYTES = 512 << 20
"""Written before each launch: more than any chip's cache, and for long enough (0.1 ms at 5 TB/s) that the
host has the launch ready behind it."""
FLUSH_SHARE = 8
"""At most an eighth of what is free."""


class TileStopwatch:
    """A ``Begin``: makes trials on one GPU. Memory goes back with ``close``."""

    def __init__(self, device: torch.device, chip: Chip) -> None:
        self._device, self._chip = device, chip
        self._flush: Tensor | None = None  # made when it is needed: only one rank of several measures

    def __call__(self, trial: TileTrial) -> Measure:
        """Inputs of a tile are made when it is first asked for."""
        prepared: dict[str, Trial] = {}

        def measure(tile: str) -> float:
            try:
                with self._on_device(), torch.inference_mode():
                    if tile not in prepared:
                        prepared[tile] = trial.tiles[tile](self._device, self._chip)
                    return self._seconds(prepared[tile])
            except Exception as error:
                self._check_device(error)
                raise

        return measure

    def close(self) -> None:
        """Give the memory back, for the model to be loaded into."""
        self._flush = None
        with self._on_device():
            torch.cuda.empty_cache()

    def _check_device(self, failure: Exception) -> None:
        """DeviceLostError: since this failure the driver refuses every call, as after an illegal access."""
        try:
            torch.cuda.synchronize(self._device)
        except RuntimeError as refusal:
            raise DeviceLostError(str(refusal).partition("\n")[0]) from failure

    def _on_device(self) -> AbstractContextManager[None]:
        return torch.cuda.device(self._device)

    def _seconds(self, trial: Trial) -> float:
        event: Any = torch.cuda.Event  # torch leaves it untyped
        began, ended = (event(enable_timing=True) for _ in range(2))
        if self._flush is None:
            free, _ = torch.cuda.mem_get_info(self._device)
            count = min(FLUSH_BYTES, free // FLUSH_SHARE)
            self._flush = torch.empty(count, dtype=torch.int8, device=self._device)
        self._flush.zero_()
        began.record()
        trial.launch()
        ended.record()
        ended.synchronize()
        return float(began.elapsed_time(ended)) / 1e3
