"""Loads a model where more than one CPU computes it: by a GPU's own kernels, or over several devices."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headway.engine.errors import ModelError
from headway.engine.interfaces import Runner
from headway.services.logs import get_logger
from headway.services.settings import WorkerSettings

if TYPE_CHECKING:  # torch takes a second to load, and the command line does without
    import torch

    from headway.engine.fused_loading import GpuSettings

_log = get_logger("worker")


@dataclass(frozen=True, slots=True)
class Accelerated:
    """A runner, and what computes in words."""

    runner: Runner
    kernels: str


def load_accelerated(
    settings: WorkerSettings, path: Path, device: torch.device, *, threads: int, default_kv_bytes: int
) -> Accelerated | None:
    """None: nothing of it was asked for, and there is no GPU whose kernels can run.

    ModelError: an option that cannot work there, or a model that does not fit; it says what to change.
    """
    if settings.tensor_parallel == 1 and device.type == "cpu":
        return None  # and nothing of the below is loaded
    _refuse_what_is_elsewhere(settings, device)
    from headway.engine.fused_loading import can_fuse, load_fused_runner

    if settings.tensor_parallel == 1 and not can_fuse(device):
        return None
    gpu = _gpu_settings(settings)
    if settings.tensor_parallel > 1:
        loaded = _load_ranked(settings, path, device, gpu, threads=threads, default_kv_bytes=default_kv_bytes)
        _tell_tiles(loaded.runner)
        return loaded
    from headway.engine.checkpoint import open_checkpoint

    runner = load_fused_runner(
        open_checkpoint(path),
        kv_cache_bytes=settings.kv_cache_bytes,
        host_cache_bytes=settings.host_cache_bytes,
        dtype=settings.dtype,
        device=str(device),
        block_size=settings.block_size,
        max_model_len=settings.max_model_len,
        gpu=gpu,
    )
    _tell_tiles(runner)
    return Accelerated(runner, runner.kernels)


def without_kernels(device: torch.device) -> str:
    """Why a GPU goes without kernels of its own, as the rest of a sentence; empty on a CPU."""
    if device.type == "cpu":
        return ""
    from headway.engine.fused_loading import obstacle

    return f", whose kernels cannot run here: {obstacle(device)}"


def _tell_tiles(runner: Runner) -> None:
    """Which were measured or read; several ranks without GPUs have none."""
    from headway.engine.model_tiles import ChosenTiles

    tiles = getattr(runner, "tiles", None)
    if isinstance(tiles, ChosenTiles) and tiles.origin:
        _log.info("tiles_chosen", tiles=tiles.origin, notes=tiles.notes)


def _load_ranked(
    settings: WorkerSettings,
    path: Path,
    device: torch.device,
    gpu: GpuSettings,
    *,
    threads: int,
    default_kv_bytes: int,
) -> Accelerated:
    from headway.engine.ranked_loading import RankSettings
    from headway.services.ranks import load_ranked

    size, on_cpu = settings.tensor_parallel, device.type == "cpu"
    ranked = load_ranked(
        path,
        size,
        device,
        RankSettings(
            dtype=settings.dtype,
            # One machine's memory and cores are shared by the ranks; each GPU has its own memory.
            kv_cache_bytes=settings.kv_cache_bytes or (default_kv_bytes // size if on_cpu else None),
            host_cache_bytes=settings.host_cache_bytes // size,
            block_size=settings.block_size,
            max_model_len=settings.max_model_len,
            threads=max(1, threads // size),
        ),
        gpu=gpu,
    )
    return Accelerated(ranked.runner, ranked.kernels)


def _refuse_what_is_elsewhere(settings: WorkerSettings, device: torch.device) -> None:
    where = f"--tensor-parallel {settings.tensor_parallel}" if settings.tensor_parallel > 1 else str(device)
    for is_asked, option in (
        (settings.quantization in {"q4", "q4-int8"}, f"--quantization {settings.quantization}"),
        (settings.cpu_kernels == "native", "--cpu-kernels native"),
    ):
        if is_asked:
            raise ModelError(
                f"{option} is for the native CPU kernels, which do not run with {where}: leave one out"
            )
    if device.type != "cpu":
        return
    for is_asked, option in (
        (settings.is_deterministic, "--deterministic"),
        (settings.kv_cache_dtype in ("int8", "fp8"), f"--kv-cache-dtype {settings.kv_cache_dtype}"),
        (settings.quantization not in ("auto", "none"), f"--quantization {settings.quantization}"),
    ):
        if is_asked:
            raise ModelError(f"{option} over several devices needs GPUs: leave it out")


def _gpu_settings(settings: WorkerSettings) -> GpuSettings:
    from headway.engine.fused_loading import GpuSettings

    form = settings.quantization
    return GpuSettings(
        # auto: what was measured not to cost answers, and on GPUs nothing was measured yet. q4 was refused.
        quantization="none" if form == "auto" or form == "q4" or form == "q4-int8" else form,  # noqa: PLR1714  # narrows
        kv_cache_dtype=settings.kv_cache_dtype,
        is_deterministic=settings.is_deterministic,
        has_graphs=settings.has_cuda_graphs,
        tunes_tiles=settings.tunes_kernels,
        tile_folder=None if settings.cache_dir is None else str(settings.cache_dir),
        max_sequences=settings.max_sequences,
        draft_tokens=settings.guessed_tokens,
    )
