"""A model on disk, whatever its format: its shape, its weights by name, its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from headway.engine.interfaces import Tokenizer
from headway.engine.model_config import ModelConfig

if TYPE_CHECKING:
    import torch


class Checkpoint(Protocol):
    """Read-only and memory-mapped; tensors carry Hugging Face's names and layout (RoPE over half-split heads)."""

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""
        ...

    def names(self) -> Sequence[str]:
        """Names that ``tensor`` knows, in the file's order."""
        ...

    def tensor(self, name: str) -> torch.Tensor:
        """The weight, on the CPU, [out, in] as Hugging Face stores it.

        Dtype as stored for safetensors; float32 for quantized GGUF. Raises ModelError naming what is missing or
        damaged.
        """
        ...

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that came with the model; raises ModelError when there is none or it is not supported."""
        ...
