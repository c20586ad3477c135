"""The command: what is checked, in which order, and for how long."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from gpu_checks.absent_grammars import is_installed
from gpu_checks.ceilings import measure_ceilings
from gpu_checks.decode_checks import check_decode, fits, release
from gpu_checks.engine_checks import check_engine
from gpu_checks.kernel_checks import check_kernels
from gpu_checks.random_model import INTERPRETED, LLAMA_1B, LLAMA_8B, SMOLLM2_135M, TINY
from gpu_checks.rank_checks import check_ranks
from gpu_checks.report import Report
from gpu_checks.service_checks import check_service
from gpu_checks.swap_checks import check_swaps
from gpu_checks.tile_checks import check_tiles
from gpu_checks.timing import Stopwatch

MODELS = {"SmolLM2 135M": SMOLLM2_135M, "Llama 3.2 1B": LLAMA_1B, "Llama 3 8B": LLAMA_8B}
BATCHES = ((1, 512), (32, 1024), (128, 1024))
"""(rows, context) of decode steps."""


class Command:
    """All checks on one device, until the time is over."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._is_tiny = not torch.cuda.is_available()
        if self._is_tiny:
            torch.set_num_threads(1)  # nothing here is worth a second core
        self._device = torch.device("cpu" if self._is_tiny else "cuda")
        self._folder = folder
        self._started = time.perf_counter()
        self._seconds = seconds
        self._repeats = 1 if self._is_tiny else 20
        self._watch = Stopwatch(self._device, flush_bytes=1024 if self._is_tiny else 256 << 20)
        self.report = Report(_device_name(self._device), _versions(), self._is_tiny)

    def run(self) -> Report:
        """Right first, then fast. What raises is told and does not end the rest."""
        self._measure("ceilings", self._ceilings)
        self._measure("engine", self._engine)
        self._measure("service", self._service)
        self._measure("ranks", self._ranks)
        self._measure("kernels", self._kernels)
        self._measure("swaps", self._swaps)
        self._measure("decode", self._decode)
        self._measure("tiles", self._tiles)
        return self.report

    def _measure(self, name: str, part: Callable[[], None]) -> None:
        started = time.perf_counter()
        if self._is_over(0.95):
            self.report.left_out.append(f"{name}: no time")
            return
        try:
            part()
        except Exception:  # the other parts are checked all the same
            self.report.broken.append(f"{name}: {traceback.format_exc(limit=-5)}")
        release(self._device)
        self.report.seconds = time.perf_counter() - self._started
        self.report.write(self._folder)
        print(f"{name}: {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)

    def _is_over(self, share: float) -> bool:
        return time.perf_counter() - self._started > share * self._seconds

    def _ceilings(self) -> None:
        sizes = (1 << 16, 64) if self._is_tiny else (2 << 30, 8192)
        self.report.ceilings = measure_ceilings(
            self._watch, copy_bytes=sizes[0], side=sizes[1], repeats=self._repeats
        )

    def _engine(self) -> None:
        if self._is_tiny:
            self.report.engine += check_engine(INTERPRETED, self._device, requests=3, longest=12)
            return
        self.report.engine += check_engine(INTERPRETED, self._device, requests=32, longest=90)
        self.report.engine += check_engine(SMOLLM2_135M, self._device, requests=16, longest=90)

    def _service(self) -> None:
        config = INTERPRETED if self._is_tiny else SMOLLM2_135M
        self.report.engine += check_service(config, self._device, is_tiny=self._is_tiny)
        if not is_installed():
            self.report.left_out.append("constrained answers: llguidance is not installed")

    def _ranks(self) -> None:
        if (count := torch.cuda.device_count()) < 2:
            self.report.left_out.append(f"two ranks: they need two GPUs, and there are {count}")
            return
        self.report.engine.append(check_ranks("cuda"))

    def _kernels(self) -> None:
        assert self.report.ceilings is not None, "the ceilings could not be measured"
        checks = check_kernels(
            self._watch, self.report.ceilings, is_tiny=self._is_tiny, repeats=self._repeats
        )
        for check in checks:
            self.report.kernels.append(check)
            if self._is_over(0.7):
                self.report.left_out.append(f"kernels after {check.kernel}, {check.label}: no time")
                return

    def _swaps(self) -> None:
        assert self.report.ceilings is not None, "the ceilings could not be measured"
        config, blocks = (TINY, 4) if self._is_tiny else (LLAMA_8B, 512)
        self.report.swaps += check_swaps(
            config, self._watch, self.report.ceilings, blocks=blocks, repeats=self._repeats
        )

    def _decode(self) -> None:
        assert self.report.ceilings is not None, "the ceilings could not be measured"
        models = {"tiny": INTERPRETED} if self._is_tiny else MODELS
        batches = ((3, 40),) if self._is_tiny else BATCHES
        for name, config in models.items():
            fitting = tuple(batch for batch in batches if fits(config, self._device, *batch))
            if len(fitting) < len(batches) or self._is_over(0.9):
                self.report.left_out.append(f"decode of {name}: no time, or memory for {fitting} only")
            if self._is_over(0.9):
                return
            for check in check_decode(
                name, config, self._watch, self.report.ceilings, batches=fitting, repeats=self._repeats
            ):
                self.report.decode.append(check)
            release(self._device)

    def _tiles(self) -> None:
        for check in check_tiles(self._watch, is_tiny=self._is_tiny, repeats=self._repeats):
            self.report.tiles.append(check)
            if self._is_over(1.0):
                self.report.left_out.append(
                    f"tiles after {check.kernel}, {check.label}, {check.tile}: no time"
                )
                return


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"


def _versions() -> dict[str, str]:
    triton: Any = importlib.import_module("triton")  # it ships no types

    python = ".".join(map(str, sys.version_info[:3]))
    return {"python": python, "torch": torch.__version__, "triton": triton.__version__}


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(description="Kernels and engine on this machine's GPU.")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")), help="folder")
    parser.add_argument("--seconds", type=float, default=450.0, help="after which no new check starts")
    arguments = parser.parse_args()
    report = Command(arguments.out, arguments.seconds).run()
    print(report.page())
    return 1 if report.wrong else 0
