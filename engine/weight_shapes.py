"""The weights that a model must have, by Hugging Face's names, and the check that they are there.

Standard library only. Loading starts with this check, so that a missing shard is told before minutes of work.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from headway.engine.errors import ModelError
from headway.engine.model_config import ModelConfig

Shape = tuple[int, ...]


def weight_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every weight of the model and its shape ([out, in]), from the embedding to the head."""
    embedding = (config.vocab_size, config.hidden_size)
    shapes: dict[str, Shape] = {"model.embed_tokens.weight": embedding}
    layer = _layer_shapes(config)
    for index in range(config.layer_count):
        shapes.update({f"model.layers.{index}.{name}": shape for name, shape in layer.items()})
    shapes["model.norm.weight"] = (config.hidden_size,)
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = embedding
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    hidden, inner = config.hidden_size, config.intermediate_size
    q, kv = config.query_head_count * config.head_dim, config.kv_head_count * config.head_dim
    linear = {
        "self_attn.q_proj": (q, hidden, config.qkv_bias),
        "self_attn.k_proj": (kv, hidden, config.qkv_bias),
        "self_attn.v_proj": (kv, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, q, config.output_bias),
        "mlp.gate_proj": (inner, hidden, config.mlp_bias),
        "mlp.up_proj": (inner, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, inner, config.mlp_bias),
    }
    shapes: dict[str, Shape] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    for name, (outputs, inputs, has_bias) in linear.items():
        shapes[f"{name}.weight"] = (outputs, inputs)
        if has_bias:
            shapes[f"{name}.bias"] = (outputs,)
    return shapes


def check_weights(path: Path, wanted: Mapping[str, Shape], found: Mapping[str, Shape]) -> None:
    """ModelError when a weight is missing or has another shape than the configuration says."""
    missing = [name for name in wanted if name not in found]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(f"{path}: the weight {missing[0]}{more} is missing; fetch the model's files again")
    for name, shape in wanted.items():
        if found[name] != shape:
            raise ModelError(
                f"{path}: {name} has the shape {list(found[name])}, but the model's configuration makes it "
                f"{list(shape)}; the configuration and the weights are not of the same model"
            )
