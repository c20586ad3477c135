"""From a checkpoint's tensors to weights ready to multiply, layer by layer: the peak stays near one copy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from headway.engine.checkpoint import Checkpoint
from headway.engine.errors import ModelError
from headway.engine.linear import Linear, Product
from headway.engine.model_config import ModelConfig
from headway.engine.shard import WHOLE, Shard
from headway.engine.torch_model import DecoderLayer, ModelWeights
from headway.engine.weight_shapes import weight_shapes

ACTIVATIONS = frozenset({"silu", "gelu_tanh"})


MakeProduct: TypeAlias = Callable[[Tensor, Tensor | None], Product]
"""From weight [out, in] and bias [out]; the weight is given up to it."""


def load_weights(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    device: torch.device,
    *,
    shard: Shard = WHOLE,
    make_product: MakeProduct = Linear,
    make_head: MakeProduct = Linear,
) -> ModelWeights:
    """Read, convert, fuse and lay out every weight. ModelError: missing, damaged or not supported.

    ``make_product`` is for the layers'; the head keeps ``dtype``, and ``make_head`` gets no bias.
    """
    config = checkpoint.config
    if config.activation not in ACTIVATIONS:
        raise ModelError(
            f"activation {config.activation!r} is not supported; known: {', '.join(sorted(ACTIVATIONS))}"
        )
    reader = _Reader(checkpoint, dtype, device, shard=shard, make_product=make_product, make_head=make_head)
    embedding = reader.tensor("model.embed_tokens.weight")
    head = reader.head(embedding if config.tied_embeddings else reader.tensor("lm_head.weight"))
    layers = tuple(_layer(reader, config, f"model.layers.{index}") for index in range(config.layer_count))
    return ModelWeights(embedding, layers, reader.tensor("model.norm.weight"), head)


def weight_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Bytes that the loaded weights take; a tied head has its own copy, since its layout differs."""
    count = sum(math.prod(shape) for shape in weight_shapes(config).values())
    if config.tied_embeddings:
        count += config.vocab_size * config.hidden_size
    return count * dtype.itemsize


def _layer(reader: _Reader, config: ModelConfig, name: str) -> DecoderLayer:
    attention, mlp = f"{name}.self_attn", f"{name}.mlp"
    projections = [f"{attention}.{letter}_proj" for letter in "qkv"]
    return DecoderLayer(
        attention_norm=reader.tensor(f"{name}.input_layernorm.weight"),
        qkv=reader.linear(projections, has_bias=config.qkv_bias),
        query_norm=reader.tensor(f"{attention}.q_norm.weight") if config.qk_norm else None,
        key_norm=reader.tensor(f"{attention}.k_norm.weight") if config.qk_norm else None,
        output=reader.summed(f"{attention}.o_proj", has_bias=config.output_bias),
        mlp_norm=reader.tensor(f"{name}.post_attention_layernorm.weight"),
        gate_up=reader.linear([f"{mlp}.gate_proj", f"{mlp}.up_proj"], has_bias=config.mlp_bias),
        down=reader.summed(f"{mlp}.down_proj", has_bias=config.mlp_bias),
    )


class _Reader:
    """Tensors of one checkpoint in one dtype on one device, and products of a shard's part of them."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: torch.device,
        *,
        shard: Shard,
        make_product: MakeProduct,
        make_head: MakeProduct,
    ) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._device = device
        self._shard = shard
        self._make_product = make_product
        self._make_head = make_head

    def tensor(self, name: str) -> Tensor:
        """A copy: a mapped file may be replaced while we run."""
        return self._checkpoint.tensor(name).to(self._device, self._dtype, copy=True)

    def linear(self, names: list[str], *, has_bias: bool) -> Product:
        """Projections fused along their outputs."""
        cut = self._shard.outputs
        weight = torch.cat([cut(self._checkpoint.tensor(f"{name}.weight")).to(self._dtype) for name in names])
        bias = torch.cat([cut(self.tensor(f"{name}.bias")) for name in names]) if has_bias else None
        return self._make_product(weight.to(self._device), bias)

    def summed(self, name: str, *, has_bias: bool) -> Product:
        """A projection of what the ranks have made, each of its part."""
        weight = self._shard.inputs(self._checkpoint.tensor(f"{name}.weight"))
        # Added once, not by every rank.
        bias = self.tensor(f"{name}.bias") if has_bias and self._shard.rank == 0 else None
        whole = weight.to(self._device, self._dtype, copy=True)
        return self._shard.summed(self._make_product(whole.contiguous(), bias))

    def head(self, weight: Tensor) -> Product:
        """The product that makes logits; each rank makes all where the vocabulary does not divide."""
        if len(weight) % self._shard.size:
            return self._make_head(weight, None)
        # A tied table is needed whole for the embedding: a part of it would keep it all the same.
        return self._shard.joined(self._make_head(self._shard.outputs(weight), None))
