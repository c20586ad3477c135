"""The Llama family's forward pass in torch's operations: no padding, logits only where they are asked for.

One block with switches covers Llama 2/3, SmolLM2, Mistral (sliding window), Qwen2 (q, k, v biases) and Qwen3
(q/k norm):

    x ← x + attention(norm(x));  x ← x + down(act(gate(norm(x))) · up(norm(x)));  logits = head(norm(x))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from headway.engine.kv_cache import KVCache
from headway.engine.linear import Product
from headway.engine.model_config import ModelConfig
from headway.engine.rope import RotaryTables
from headway.engine.step_inputs import StepInputs
from headway.kernels.gated_activation import Activation, gated_activation
from headway.kernels.kv_write import kv_write
from headway.kernels.paged_attention import paged_attention
from headway.kernels.rms_norm import add_rms_norm, rms_norm
from headway.kernels.rotary import rotary


@dataclass(frozen=True, slots=True)
class DecoderLayer:
    """Weights of one block; q, k, v and gate, up are fused along their outputs."""

    attention_norm: Tensor
    qkv: Product
    query_norm: Tensor | None
    key_norm: Tensor | None
    output: Product
    mlp_norm: Tensor
    gate_up: Product
    down: Product


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """All weights, ready to multiply."""

    embedding: Tensor
    layers: tuple[DecoderLayer, ...]
    final_norm: Tensor
    head: Product


Mixing: TypeAlias = Callable[[DecoderLayer, Tensor, tuple[Tensor, Tensor]], Tensor]
"""From a layer, its projected heads and its pools to attention's result: [tokens, query_heads, head_dim]."""


class TorchModel:
    """Computes new KV and logits for one packed batch. Holds no state of requests."""

    def __init__(self, config: ModelConfig, weights: ModelWeights, tables: RotaryTables) -> None:
        self._config = config
        self._weights = weights
        self._tables = tables
        self._scale = config.head_dim**-0.5
        self._activation: Activation = "silu" if config.activation == "silu" else "gelu_tanh"

    def forward(self, inputs: StepInputs, cache: KVCache) -> Tensor:
        """Write the KV of all tokens; return logits [len(logit_rows), vocab] in float32."""
        eps, layers = self._config.norm_eps, self._weights.layers
        mix = self._mixing(inputs)
        residual = self._weights.embedding.index_select(0, inputs.token_ids)
        x = rms_norm(residual, layers[0].attention_norm, eps)
        for index, layer in enumerate(layers):
            if index > 0:
                x, residual = add_rms_norm(x, residual, layer.attention_norm, eps)
            pools = (cache.keys[index], cache.values[index])
            x = layer.output(mix(layer, self._heads(layer, x), pools).flatten(1))
            x, residual = add_rms_norm(x, residual, layer.mlp_norm, eps)
            x = layer.down(gated_activation(layer.gate_up(x), self._activation))
        if len(inputs.logit_rows) == 0:
            return residual.new_empty((0, self._config.vocab_size), dtype=torch.float32)
        return self._logits(residual.add_(x), inputs.logit_rows)

    def _heads(self, layer: DecoderLayer, x: Tensor) -> Tensor:
        """[tokens, query_heads + 2 · kv_heads, head_dim]: queries, keys, values."""
        count = self._config.query_head_count + 2 * self._config.kv_head_count
        return layer.qkv(x).view(x.shape[0], count, self._config.head_dim)

    def _mixing(self, inputs: StepInputs) -> Mixing:
        """Norm, rotation, KV write and attention as one operation of torch after another."""
        attention = inputs.attention
        cos = self._tables.cos.index_select(0, inputs.positions).unsqueeze(1)
        signed_sin = self._tables.signed_sin.index_select(0, inputs.positions).unsqueeze(1)
        queries, keys = self._config.query_head_count, self._config.kv_head_count

        def mix(layer: DecoderLayer, heads: Tensor, pools: tuple[Tensor, Tensor]) -> Tensor:
            key_pool, value_pool = pools
            query_key = heads[:, : queries + keys]
            if layer.query_norm is not None and layer.key_norm is not None:
                query = rms_norm(heads[:, :queries], layer.query_norm, self._config.norm_eps)
                key = rms_norm(heads[:, queries : queries + keys], layer.key_norm, self._config.norm_eps)
                query_key = torch.cat((query, key), dim=1)
            rotated = rotary(query_key, cos, signed_sin)
            kv_write(key_pool, rotated[:, queries:], attention.pool_rows)
            kv_write(value_pool, heads[:, queries + keys :], attention.pool_rows)
            return paged_attention(
                rotated[:, :queries], key_pool, value_pool, attention.plan, scale=self._scale
            )

        return mix

    def _logits(self, hidden: Tensor, rows: Tensor) -> Tensor:
        picked = hidden.index_select(0, rows)
        return self._weights.head(rms_norm(picked, self._weights.final_norm, self._config.norm_eps)).float()
