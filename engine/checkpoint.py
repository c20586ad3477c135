"""A model on disk, whatever its format: its shape, its weights by name, its tokenizer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from headway.engine.errors import ModelError
from headway.engine.interfaces import Tokenizer
from headway.engine.model_config import ModelConfig

if TYPE_CHECKING:
    import torch

_LATER_PART = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")


class Checkpoint(Protocol):
    """Read-only and memory-mapped; weights carry Hugging Face's names and layout (half-split RoPE)."""

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""
        ...

    def names(self) -> Sequence[str]:
        """Names that ``tensor`` knows, in the file's order."""
        ...

    def tensor(self, name: str) -> torch.Tensor:
        """The weight, on the CPU, [out, in] as Hugging Face stores it.

        Dtype as stored; float32 for quantized GGUF. Raises ModelError naming what is missing or damaged.
        """
        ...

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that came with the model; ModelError when there is none, or one of another kind."""
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file, a folder with one, or a Hugging Face folder; all that is missing is told now.

    Raises ModelError that names the file and says what to do.
    """
    if not path.exists():
        raise ModelError(f"{path}: there is no such file or folder; check the path")
    if path.is_file():
        return _open_gguf(path)
    if (path / "config.json").exists():
        from headway.engine.safetensors_checkpoint import SafetensorsCheckpoint

        return SafetensorsCheckpoint(path)
    # A split set counts once, by its first part.
    files = [file for file in sorted(path.glob("*.gguf")) if not _LATER_PART.search(file.name)]
    if len(files) == 1:
        return _open_gguf(files[0])
    if files:
        raise ModelError(f"{path}: {len(files)} GGUF files; name the one to load, such as {files[0]}")
    raise ModelError(f"{path}: neither config.json nor a .gguf file; name a model's folder or file")


def _open_gguf(path: Path) -> Checkpoint:
    # Imported here, so that a folder does not pay for GGUF, nor a GGUF file for safetensors.
    from headway.engine.gguf_checkpoint import GgufCheckpoint

    return GgufCheckpoint(path)
