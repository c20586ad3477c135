"""Models of known shapes with random weights: nothing has to be fetched."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from headway.engine.errors import ModelError
from headway.engine.interfaces import Tokenizer
from headway.engine.model_config import Architecture, ModelConfig, RopeConfig
from headway.engine.scripted import ByteTokenizer
from headway.engine.weight_shapes import weight_shapes


def model(
    vocab: int, hidden: int, inner: int, layers: int, *, heads: tuple[int, int], head_dim: int, tied: bool
) -> ModelConfig:
    """A Llama of this shape; heads are (query, kv)."""
    return ModelConfig(
        architecture=Architecture.LLAMA,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=inner,
        layer_count=layers,
        query_head_count=heads[0],
        kv_head_count=heads[1],
        head_dim=head_dim,
        norm_eps=1e-5,
        rope=RopeConfig(),
        max_position=8192,
        tied_embeddings=tied,
    )


TINY = model(300, 64, 96, 2, heads=(4, 2), head_dim=16, tied=True)
INTERPRETED = model(300, 64, 96, 1, heads=(2, 1), head_dim=16, tied=True)
CUT = model(1000, 256, 512, 4, heads=(8, 4), head_dim=32, tied=True)
"""That two ranks can share."""
SMOLLM2_135M = model(49_152, 576, 1536, 30, heads=(9, 3), head_dim=64, tied=True)
LLAMA_1B = model(128_256, 2048, 8192, 16, heads=(32, 8), head_dim=64, tied=True)
LLAMA_8B = model(128_256, 4096, 14_336, 32, heads=(32, 8), head_dim=128, tied=False)


class AnyVocabulary(ByteTokenizer):
    """Bytes, and a question mark for every token beyond."""

    def token_bytes(self, token_id: int) -> bytes:
        """One byte."""
        return super().token_bytes(token_id) if token_id < self.vocab_size else b"?"


@dataclass(frozen=True, slots=True)
class RandomCheckpoint:
    """A ``Checkpoint``: weights by a seed from their names, so any device of a kind has the same."""

    config: ModelConfig
    device: torch.device
    """Where weights are made: the CPU for equal ones on all devices, a GPU for speed."""

    def names(self) -> Sequence[str]:
        """All weights of the shape."""
        return tuple(weight_shapes(self.config))

    def tensor(self, name: str) -> torch.Tensor:
        """float32 on the CPU, bfloat16 elsewhere; norms near 1, others as they are initialised."""
        shape = weight_shapes(self.config).get(name)
        if shape is None:
            raise ModelError(f"{name} is not in a model of this shape")
        generator = torch.Generator(self.device).manual_seed(zlib.crc32(name.encode()))
        dtype = torch.float32 if self.device.type == "cpu" else torch.bfloat16
        values = torch.empty(shape, dtype=dtype, device=self.device).normal_(generator=generator)
        return values * 0.1 + 1.0 if len(shape) == 1 else values * (1.5 / shape[-1] ** 0.5)

    def tokenizer(self) -> Tokenizer:
        """Its texts mean nothing."""
        return AnyVocabulary()


def read_bytes(config: ModelConfig, rows: int, context: int, itemsize: int) -> int:
    """What one decode step must read: every weight but an embedding of its own, and all KV."""
    shapes = weight_shapes(config)
    weights = sum(torch.Size(shape).numel() for shape in shapes.values())
    if not config.tied_embeddings:
        weights -= config.vocab_size * config.hidden_size
    kv = rows * context * 2 * config.layer_count * config.kv_head_count * config.head_dim
    return (weights + kv) * itemsize
