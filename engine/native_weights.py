"""From a checkpoint's tensors to the CPU kernels' packed weights, part by part: one copy of each stays."""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from headway.engine.checkpoint import Checkpoint
from headway.engine.cpu_kernels import Quantization
from headway.engine.errors import ModelError
from headway.engine.model_config import ModelConfig
from headway.engine.rope import rotary_tables
from headway.engine.weight_parts import WeightParts
from headway.engine.weight_shapes import Shape, weight_shapes
from headway.kernels.cpu_gemm import Epilogue, PackedWeight
from headway.kernels.cpu_step import CpuLayer, CpuModel
from headway.kernels.weight_rows import (
    BLOCK_BYTES,
    GROUP,
    WeightKind,
    WeightRows,
    bf16_rows,
    f32_rows,
    q8_0_rows,
)

FOUR_BITS = frozenset({WeightKind.Q4_0, WeightKind.Q4_1})


@runtime_checkable
class QuantizedCheckpoint(Protocol):
    """A checkpoint whose file holds blocks that the kernels read as they are."""

    def blocks(self, name: str) -> WeightRows | None:
        """The weight's own blocks in Hugging Face's order; None when it is stored otherwise."""
        ...


def load_native_weights(
    library: ctypes.CDLL,
    checkpoint: Checkpoint,
    positions: int,
    quantization: Quantization,
    dtype: torch.dtype = torch.bfloat16,
    *,
    parts: WeightParts | None = None,
) -> CpuModel:
    """Read, pack and lay out every weight, with rotary tables for ``positions``.

    ``dtype``: of weights that are not quantized, bfloat16 or float32. ``parts``: packed before; None: the
    checkpoint's.

    ModelError: damaged, or without the 4-bit blocks that were asked for.
    """
    config = checkpoint.config
    if parts is None:
        parts = CheckpointParts(library, checkpoint, quantization, dtype)
    head = parts.weight(["model.embed_tokens" if config.tied_embeddings else "lm_head"])
    tables = rotary_tables(config.rope, config.head_dim, positions, torch.float32, torch.device("cpu"))
    half = config.head_dim // 2
    model = CpuModel(
        query_heads=config.query_head_count,
        kv_heads=config.kv_head_count,
        head_dim=config.head_dim,
        sliding_window=config.sliding_window,
        activation=Epilogue.SILU_MUL if config.activation == "silu" else Epilogue.GELU_TANH_MUL,
        norm_eps=config.norm_eps,
        # Read row by row from the head's own layout: a tied table needs no second copy.
        embedding=head if config.tied_embeddings else parts.weight(["model.embed_tokens"]),
        layers=tuple(_layer(parts, config, f"model.layers.{index}") for index in range(config.layer_count)),
        final_norm=parts.vector("model.norm.weight"),
        head=head,
        cosines=tables.cos[:, :half].contiguous(),
        sines=tables.signed_sin[:, half:].contiguous(),
    )
    if quantization == "q4" and not FOUR_BITS & {layer.down.kind for layer in model.layers}:
        raise ModelError(
            "quantization q4 reads the 4-bit blocks of a GGUF file (Q4_0 or Q4_1), which this model's files "
            "do not hold; take such a file, or --quantization int8"
        )
    return model


def native_weight_bytes(
    config: ModelConfig, quantization: Quantization, dtype: torch.dtype = torch.bfloat16
) -> int:
    """Bytes that the packed weights take at most; none is there twice, and 4-bit blocks take less."""

    def size(shape: Shape) -> int:
        is_rounded = quantization != "none" and shape[-1] % GROUP == 0
        plain = dtype.itemsize * GROUP
        return math.prod(shape) * (BLOCK_BYTES[WeightKind.Q8_0] if is_rounded else plain) // GROUP

    return sum(size(shape) for shape in weight_shapes(config).values())


def kinds_of(model: CpuModel) -> str:
    """The layers' weight kinds and the head's, for people: ``Q4_1, head Q8_0``."""
    counts = Counter(
        weight.kind.name for layer in model.layers for weight in (layer.qkv, layer.gate_up, layer.down)
    )
    return f"{', '.join(name for name, _ in counts.most_common())}, head {model.head.kind.name}"


def _layer(parts: WeightParts, config: ModelConfig, name: str) -> CpuLayer:
    attention, mlp = f"{name}.self_attn", f"{name}.mlp"
    return CpuLayer(
        qkv=parts.weight([f"{attention}.{letter}_proj" for letter in "qkv"], has_bias=config.qkv_bias),
        output=parts.weight([f"{attention}.o_proj"], has_bias=config.output_bias),
        gate_up=parts.weight(
            [f"{mlp}.gate_proj", f"{mlp}.up_proj"], has_bias=config.mlp_bias, is_paired=True
        ),
        down=parts.weight([f"{mlp}.down_proj"], has_bias=config.mlp_bias),
        attention_norm=parts.vector(f"{name}.input_layernorm.weight"),
        query_norm=parts.vector(f"{attention}.q_norm.weight") if config.qk_norm else None,
        key_norm=parts.vector(f"{attention}.k_norm.weight") if config.qk_norm else None,
        mlp_norm=parts.vector(f"{name}.post_attention_layernorm.weight"),
    )


class CheckpointParts:
    """Tensors of one checkpoint as the kernels want them."""

    def __init__(
        self,
        library: ctypes.CDLL,
        checkpoint: Checkpoint,
        quantization: Quantization,
        dtype: torch.dtype,
    ) -> None:
        self._library = library
        self._checkpoint = checkpoint
        self._quantization = quantization
        self._plain = f32_rows if dtype == torch.float32 else bf16_rows

    def vector(self, name: str) -> Tensor:
        """A float32 copy: a mapped file may be replaced while we run."""
        return self._checkpoint.tensor(name).to(torch.float32, copy=True)

    def weight(
        self, names: Sequence[str], *, has_bias: bool = False, is_paired: bool = False
    ) -> PackedWeight:
        """Projections fused along their outputs."""
        bias = torch.cat([self.vector(f"{name}.bias") for name in names]) if has_bias else None
        parts = [self._rows(f"{name}.weight") for name in names]
        if len({part.kind for part in parts}) > 1:  # some files keep more bits for some of them
            parts = [self._rounded(f"{name}.weight") for name in names]
        return PackedWeight(self._library, parts, is_paired, bias)

    def _rows(self, name: str) -> WeightRows:
        if self._quantization == "none":
            return self._plain(self._checkpoint.tensor(name))
        stored = self._checkpoint.blocks(name) if isinstance(self._checkpoint, QuantizedCheckpoint) else None
        if stored is not None and not (self._quantization == "int8" and stored.kind in FOUR_BITS):
            return stored
        return self._rounded(name)

    def _rounded(self, name: str) -> WeightRows:
        weight = self._checkpoint.tensor(name)
        return q8_0_rows(weight) if weight.shape[1] % GROUP == 0 else self._plain(weight)
