"""From a checkpoint's tensors to the CPU kernels' packed weights, part by part: one copy of each stays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from headway.engine.checkpoint import Checkpoint
from headway.engine.model_config import ModelConfig
from headway.engine.rope import rotary_tables
from headway.kernels.cpu_gemm import PackedWeight
from headway.kernels.cpu_step import GELU_TANH_MUL, SILU_MUL, CpuLayer, CpuModel


def load_native_weights(library: ctypes.CDLL, checkpoint: Checkpoint, positions: int) -> CpuModel:
    """Read, pack and lay out every weight, with rotary tables for ``positions``. ModelError: damaged."""
    config = checkpoint.config
    reader = _Reader(library, checkpoint)
    head = reader.weight(["model.embed_tokens" if config.tied_embeddings else "lm_head"])
    tables = rotary_tables(config.rope, config.head_dim, positions, torch.float32, torch.device("cpu"))
    half = config.head_dim // 2
    return CpuModel(
        query_heads=config.query_head_count,
        kv_heads=config.kv_head_count,
        head_dim=config.head_dim,
        sliding_window=config.sliding_window,
        activation=SILU_MUL if config.activation == "silu" else GELU_TANH_MUL,
        norm_eps=config.norm_eps,
        # Read row by row from the head's own layout: a tied table needs no second copy.
        embedding=head if config.tied_embeddings else reader.weight(["model.embed_tokens"]),
        layers=tuple(_layer(reader, config, f"model.layers.{index}") for index in range(config.layer_count)),
        final_norm=reader.vector("model.norm.weight"),
        head=head,
        cosines=tables.cos[:, :half].contiguous(),
        sines=tables.signed_sin[:, half:].contiguous(),
    )


def _layer(reader: _Reader, config: ModelConfig, name: str) -> CpuLayer:
    attention, mlp = f"{name}.self_attn", f"{name}.mlp"
    return CpuLayer(
        qkv=reader.weight([f"{attention}.{letter}_proj" for letter in "qkv"], has_bias=config.qkv_bias),
        output=reader.weight([f"{attention}.o_proj"], has_bias=config.output_bias),
        gate_up=reader.weight([f"{mlp}.gate_proj", f"{mlp}.up_proj"], has_bias=config.mlp_bias, is_paired=True),
        down=reader.weight([f"{mlp}.down_proj"], has_bias=config.mlp_bias),
        attention_norm=reader.vector(f"{name}.input_layernorm.weight"),
        query_norm=reader.vector(f"{attention}.q_norm.weight") if config.qk_norm else None,
        key_norm=reader.vector(f"{attention}.k_norm.weight") if config.qk_norm else None,
        mlp_norm=reader.vector(f"{name}.post_attention_layernorm.weight"),
    )


class _Reader:
    """Tensors of one checkpoint as the kernels want them."""

    def __init__(self, library: ctypes.CDLL, checkpoint: Checkpoint) -> None:
        self._library = library
        self._checkpoint = checkpoint

    def vector(self, name: str) -> Tensor:
        """A float32 copy: a mapped file may be replaced while we run."""
        return self._checkpoint.tensor(name).to(torch.float32, copy=True)

    def weight(self, names: Sequence[str], *, has_bias: bool = False, is_paired: bool = False) -> PackedWeight:
        """Projections fused along their outputs."""
        bias = torch.cat([self.vector(f"{name}.bias") for name in names]) if has_bias else None
        parts = [self._checkpoint.tensor(f"{name}.weight") for name in names]
        return PackedWeight(self._library, parts, is_paired, bias)
