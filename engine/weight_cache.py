"""Packed weights on disk: made once for a model's contents, mapped by every later start and every worker.

The name says what a file follows from: the contents of the model's files, the form of the weights, and the
code that packs them. It is written beside its final name and renamed, so any number of processes may start at
once. A file that is not as it was written is made anew. What cannot be kept (no room, no right to write)
stays in the worker's own memory, as it would without a folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import torch

from headway.engine import native_weights
from headway.engine.checkpoint import Checkpoint
from headway.engine.content import StoredCheckpoint, content_digest
from headway.engine.cpu_kernels import Quantization
from headway.engine.native_weights import CheckpointParts, load_native_weights, native_weight_bytes
from headway.engine.packed_file import DamagedFileError, PackedFile, PackedWriter
from headway.engine.weight_parts import StoredParts, WeightParts, WrittenParts
from headway.engine.weight_shapes import weight_shapes
from headway.engine.whole_file import BEGUN, write_whole
from headway.kernels import native_library, weight_rows
from headway.kernels.cpu_step import CpuModel

PACKING_CODE: Final = (
    Path(native_weights.__file__),
    Path(native_weights.__file__).with_name("gguf_checkpoint.py"),
    Path(native_weights.__file__).with_name("dequantize.py"),
    Path(weight_rows.__file__),
    Path(weight_rows.__file__).with_name("cpu_gemm.py"),
    *(native_library.SOURCES / name for name in ("gemm.h", "gemm_layout.h", "gemm_pack.cpp")),
)
"""What decides which byte of a checkpoint ends up where; a change in any of them makes files anew."""
ABANDONED_SECONDS: Final = 3600.0
"""A file that somebody began to write longer ago is the rest of a process that was killed."""


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """A model ready to compute, and in words where its weights are."""

    model: CpuModel
    place: str


@dataclass(frozen=True, slots=True)
class WeightSource:
    """What weights are made from, and how."""

    library: ctypes.CDLL
    checkpoint: Checkpoint
    positions: int
    quantization: Quantization
    dtype: torch.dtype
    threads: int

    def load(self, parts: WeightParts | None = None) -> CpuModel:
        """From the checkpoint, or from these parts."""
        return load_native_weights(
            self.library, self.checkpoint, self.positions, self.quantization, self.dtype, parts=parts
        )

    @property
    def most_bytes(self) -> int:
        """What the packed weights take at most."""
        return native_weight_bytes(self.checkpoint.config, self.quantization, self.dtype)


def load_cached_weights(
    source: WeightSource, folder: Path | None, clock: Callable[[], float] = time.perf_counter
) -> LoadedWeights:
    """The weights from ``folder``, packed and put there if it lacks them; None: they are kept in memory only.

    ModelError: the checkpoint is damaged, or cannot be had in this form.
    """
    if folder is None or not isinstance(source.checkpoint, StoredCheckpoint):
        return LoadedWeights(source.load(), "in memory")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        digest = content_digest(source.checkpoint.files(), folder, source.threads)
        path = folder / file_name(source, digest)
        return _mapped(source, path) or _made(source, path, clock)
    except OSError as error:
        return LoadedWeights(source.load(), f"in memory: nothing can be kept in {folder} ({error})")


def file_name(source: WeightSource, digest: str) -> str:
    """``weights-<content>-<form>-<code>.packed``."""
    form = f"{source.quantization}-{str(source.dtype).removeprefix('torch.')}"
    code = hashlib.sha256(repr(weight_shapes(source.checkpoint.config)).encode())
    for path in PACKING_CODE:
        code.update(path.read_bytes())
    return f"weights-{digest[:24]}-{form}-{code.hexdigest()[:12]}.packed"


def _mapped(source: WeightSource, path: Path) -> LoadedWeights | None:
    """What the file holds; None: there is no file, or a damaged one."""
    try:
        file = PackedFile(path, source.threads)
        model = source.load(StoredParts(file))
    except FileNotFoundError:
        return None
    except DamagedFileError:
        return None
    with contextlib.suppress(OSError):  # somebody else's file, which is as good
        os.utime(path)  # whoever wants room can see what nobody has used for long
    return LoadedWeights(model, f"mapped from {path} ({file.byte_count / 1e6:.0f} MB)")


def _made(source: WeightSource, path: Path, clock: Callable[[], float]) -> LoadedWeights:
    """Pack into a new file. OSError: it cannot be written."""
    was_damaged, started = path.exists(), clock()
    free = shutil.disk_usage(path.parent).free
    if free < 2 * source.most_bytes:
        raise OSError(f"{free / 1e9:.1f} GB are free, and twice the weights' size is asked for")

    def write(file: BinaryIO) -> None:
        parts = CheckpointParts(source.library, source.checkpoint, source.quantization, source.dtype)
        written = WrittenParts(parts, PackedWriter(file))
        source.load(written)
        written.finish()

    write_whole(path, write)
    _sweep(path)
    loaded = _mapped(source, path)
    if loaded is None:
        raise OSError(f"{path} is not what was written there")
    why = "the one there was damaged; " if was_damaged else ""
    return LoadedWeights(loaded.model, f"{loaded.place}; {why}made in {clock() - started:.1f} s")


def _sweep(path: Path) -> None:
    """Remove what older code made of the same weights, and what killed processes left."""
    older = path.name.rpartition("-")[0]
    for other in path.parent.glob(f"{older}-*.packed"):
        if other != path:
            other.unlink(missing_ok=True)  # who has it mapped keeps its pages
    now = path.stat().st_mtime  # by the clock that the others' times are from
    for begun in path.parent.glob(f"{BEGUN}*"):
        with contextlib.suppress(FileNotFoundError):  # whoever wrote it has finished
            if now - begun.stat().st_mtime > ABANDONED_SECONDS:
                begun.unlink()
