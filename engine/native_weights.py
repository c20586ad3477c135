"""From a checkpoint's tensors to the CPU kernels' packed weights, part by part: one copy of each stays."""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
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
from headway.kernels.cpu_step import MANY_TOKENS, CpuLayer, CpuModel
from headway.kernels.weight_rows import (
    BLOCK_BYTES,
    GROUP,
    WeightKind,
    WeightRows,
    bf16_rows,
    f32_rows,
    int8_rows,
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
    layers = tuple(_layer(parts, config, _name(index)) for index in range(config.layer_count))
    model = CpuModel(
        query_heads=config.query_head_count,
        kv_heads=config.kv_head_count,
        head_dim=config.head_dim,
        sliding_window=config.sliding_window,
        activation=Epilogue.SILU_MUL if config.activation == "silu" else Epilogue.GELU_TANH_MUL,
        norm_eps=config.norm_eps,
        # Read row by row from the head's own layout: a tied table needs no second copy.
        embedding=head if config.tied_embeddings else parts.weight(["model.embed_tokens"]),
        layers=layers,
        layers_of_many=tuple(
            _layer_of_many(parts, config, _name(index), layer) for index, layer in enumerate(layers)
        )
        if quantization == "q4-int8"
        else (),
        final_norm=parts.vector("model.norm.weight"),
        head=head,
        cosines=tables.cos[:, :half].contiguous(),
        sines=tables.signed_sin[:, half:].contiguous(),
    )
    if quantization in {"q4", "q4-int8"} and not FOUR_BITS & {layer.down.kind for layer in model.layers}:
        raise ModelError(
            f"quantization {quantization} reads the 4-bit blocks of a GGUF file (Q4_0 or Q4_1), which this "
            "model's files do not hold; take such a file, or --quantization int8"
        )
    return model


def native_weight_bytes(
    config: ModelConfig, quantization: Quantization, dtype: torch.dtype = torch.bfloat16
) -> int:
    """Bytes that the packed weights take at most; 4-bit blocks take less."""

    def size(shape: Shape) -> int:
        is_rounded = quantization != "none" and shape[-1] % GROUP == 0
        plain = dtype.itemsize * GROUP
        return math.prod(shape) * (BLOCK_BYTES[WeightKind.Q8_0] if is_rounded else plain) // GROUP

    total = sum(size(shape) for shape in weight_shapes(config).values())
    if quantization == "q4-int8":
        total += sum(
            math.prod(shape) + 4 * shape[0]
            for name, shape in weight_shapes(config).items()
            if ".layers." in name and len(shape) == 2
        )
    return total


def kinds_of(model: CpuModel) -> str:
    """The layers' weight kinds and the head's, for people: ``Q4_1, head Q8_0``."""
    counts = Counter(
        weight.kind.name for layer in model.layers for weight in (layer.qkv, layer.gate_up, layer.down)
    )
    many = f", INT8 for {MANY_TOKENS} tokens or more" if model.layers_of_many else ""
    return f"{', '.join(name for name, _ in counts.most_common())}{many}, head {model.head.kind.name}"


def _name(index: int) -> str:
    return f"model.layers.{index}"


def _layer(parts: WeightParts, config: ModelConfig, name: str) -> CpuLayer:
    attention = f"{name}.self_attn"
    qkv, output, gate_up, down = _products(parts, config, name)
    return CpuLayer(
        qkv=qkv,
        output=output,
        gate_up=gate_up,
        down=down,
        attention_norm=parts.vector(f"{name}.input_layernorm.weight"),
        query_norm=parts.vector(f"{attention}.q_norm.weight") if config.qk_norm else None,
        key_norm=parts.vector(f"{attention}.k_norm.weight") if config.qk_norm else None,
        mlp_norm=parts.vector(f"{name}.post_attention_layernorm.weight"),
    )


def _layer_of_many(parts: WeightParts, config: ModelConfig, name: str, layer: CpuLayer) -> CpuLayer:
    qkv, output, gate_up, down = _products(parts, config, name, of_many=True)
    return replace(layer, qkv=qkv, output=output, gate_up=gate_up, down=down)


def _products(
    parts: WeightParts, config: ModelConfig, name: str, *, of_many: bool = False
) -> tuple[PackedWeight, PackedWeight, PackedWeight, PackedWeight]:
    attention, mlp = f"{name}.self_attn", f"{name}.mlp"

    def weight(names: Sequence[str], has_bias: bool, is_paired: bool = False) -> PackedWeight:
        return parts.weight(names, has_bias=has_bias, is_paired=is_paired, of_many=of_many)

    return (
        weight([f"{attention}.{letter}_proj" for letter in "qkv"], config.qkv_bias),
        weight([f"{attention}.o_proj"], config.output_bias),
        weight([f"{mlp}.gate_proj", f"{mlp}.up_proj"], config.mlp_bias, is_paired=True),
        weight([f"{mlp}.down_proj"], config.mlp_bias),
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
        self,
        names: Sequence[str],
        *,
        has_bias: bool = False,
        is_paired: bool = False,
        of_many: bool = False,
    ) -> PackedWeight:
        """Projections fused along their outputs; ``of_many``: in the form for steps of many tokens."""
        bias = torch.cat([self.vector(f"{name}.bias") for name in names]) if has_bias else None
        make = self._rows_of_many if of_many else self._rows
        parts = [make(f"{name}.weight") for name in names]
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

    def _rows_of_many(self, name: str) -> WeightRows:
        weight = self._checkpoint.tensor(name)
        return (
            int8_rows(weight, WeightKind.INT8_MANY) if weight.shape[1] % GROUP == 0 else self._plain(weight)
        )

    def _rounded(self, name: str) -> WeightRows:
        weight = self._checkpoint.tensor(name)
        return q8_0_rows(weight) if weight.shape[1] % GROUP == 0 else self._plain(weight)
