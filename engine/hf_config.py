"""Hugging Face's ``config.json`` to our ModelConfig.

Standard library only. Defaults for absent keys are those of the configuration classes in transformers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, cast

from headway.engine.model_config import Architecture, ModelConfig, RopeConfig, RopeScaling
from headway.engine.model_fields import ModelFields

_ARCHITECTURES: Final = {str(architecture): architecture for architecture in Architecture}
_SUPPORTED: Final = "use a Llama, Mistral, Qwen2 or Qwen3 (dense) model"
SOFT_CAPS: Final = ("attn_logit_softcapping", "final_logit_softcapping")
"""Gemma 2's, and of none of these families: left out, answers would be wrong and nobody would be told."""
_ROPE_TYPES: Final[Mapping[str, RopeScaling]] = {
    "default": RopeScaling.NONE,
    "linear": RopeScaling.LINEAR,
    "llama3": RopeScaling.LLAMA3,
    "yarn": RopeScaling.YARN,
}


def config_from_hf(
    config: Mapping[str, object], generation: Mapping[str, object], *, source: str
) -> ModelConfig:
    """Read ``config.json`` and ``generation_config.json``; ModelError names ``source`` and the key."""
    fields = ModelFields(source, config)
    generation_fields = ModelFields(f"{source} (generation_config.json)", generation)
    architecture = _architecture(fields)
    heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    attention_bias = fields.flag("attention_bias", default=False)
    max_position = fields.integer("max_position_embeddings")
    return ModelConfig(
        architecture=architecture,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size"),
        layer_count=fields.integer("num_hidden_layers"),
        query_head_count=heads,
        kv_head_count=_kv_head_count(fields, heads),
        head_dim=fields.integer("head_dim", 128 if architecture is Architecture.QWEN3 else hidden // heads),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=_rope(fields, max_position),
        max_position=max_position,
        tied_embeddings=fields.flag("tie_word_embeddings", default=False),
        qkv_bias=attention_bias or architecture is Architecture.QWEN2,
        output_bias=attention_bias and architecture is not Architecture.QWEN2,
        mlp_bias=fields.flag("mlp_bias", default=False),
        qk_norm=architecture is Architecture.QWEN3,
        activation=_activation(fields),
        sliding_window=_sliding_window(fields, architecture, max_position),
        bos_token_id=_bos_token_id(fields),
        eos_token_ids=fields.token_ids("eos_token_id") | generation_fields.token_ids("eos_token_id"),
    )


def _architecture(fields: ModelFields) -> Architecture:
    name = fields.text("model_type")
    if name not in _ARCHITECTURES:
        raise fields.unsupported(f"the architecture {name!r}", _SUPPORTED)
    if "quantization_config" in fields:
        method = fields.nested("quantization_config").value("quant_method")
        raise fields.unsupported(
            f"quantization_config ({method})", "use the unquantized model, or a GGUF of the quantized one"
        )
    for cap in SOFT_CAPS:
        if cap in fields:
            raise fields.unsupported(f"a soft cap of logits ({cap})", _SUPPORTED)
    return _ARCHITECTURES[name]


def _activation(fields: ModelFields) -> str:
    name = fields.text("hidden_act", "silu")
    if name not in {"silu", "swish"}:
        raise fields.unsupported(f"the activation {name!r}", _SUPPORTED)
    return "silu"


def _kv_head_count(fields: ModelFields, query_heads: int) -> int:
    count = fields.integer("num_key_value_heads", query_heads)
    if query_heads % count:
        raise fields.wrong("num_key_value_heads", f"a divisor of the {query_heads} query heads")
    return count


def _bos_token_id(fields: ModelFields) -> int | None:
    return fields.integer("bos_token_id", minimum=0) if "bos_token_id" in fields else None


def _sliding_window(fields: ModelFields, architecture: Architecture, max_position: int) -> int | None:
    """The window of all layers; a model that mixes windowed and full layers is refused."""
    if architecture is Architecture.LLAMA:
        return None
    if architecture is Architecture.MISTRAL:
        # An explicit null means no window; an absent key means the class default of Mistral 7B v0.1.
        stated = fields.has_key("sliding_window")
        window = fields.integer("sliding_window") if "sliding_window" in fields else None if stated else 4096
        return window if window is not None and window < max_position else None
    if not fields.flag("use_sliding_window", default=False) or "sliding_window" not in fields:
        return None
    window = fields.integer("sliding_window")
    layers, first = fields.integer("num_hidden_layers"), fields.integer("max_window_layers", 28, minimum=0)
    windowed = _windowed_layers(fields, layers, first)
    if window >= max_position or not any(windowed):
        return None
    if not all(windowed):
        raise fields.unsupported("a sliding window in some layers only", "use a model with full attention")
    return window


def _windowed_layers(fields: ModelFields, layers: int, first: int) -> list[bool]:
    types = fields.value("layer_types")
    if isinstance(types, list):
        return [kind == "sliding_attention" for kind in cast(list[object], types)]
    return [layer >= first for layer in range(layers)]


def _rope(fields: ModelFields, max_position: int) -> RopeConfig:
    """transformers 5 writes ``rope_parameters``; older files have ``rope_theta`` and ``rope_scaling``."""
    rope = fields.nested("rope_parameters" if "rope_parameters" in fields else "rope_scaling")
    theta = rope.number("rope_theta", fields.number("rope_theta", 10_000.0))
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind not in _ROPE_TYPES:
        raise fields.unsupported(
            f"the RoPE scaling {kind!r}", "remove rope_scaling to use the trained context"
        )
    partial = rope.number("partial_rotary_factor", fields.number("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise fields.unsupported("a partial rotary embedding", _SUPPORTED)
    scaling = _ROPE_TYPES[kind]
    if scaling is RopeScaling.NONE:
        return RopeConfig(theta=theta)
    if scaling is RopeScaling.LINEAR:
        return RopeConfig(theta=theta, scaling=scaling, factor=rope.number("factor"))
    original = rope.integer(
        "original_max_position_embeddings", fields.integer("original_max_position_embeddings", max_position)
    )
    if scaling is RopeScaling.LLAMA3:
        return RopeConfig(
            theta=theta,
            scaling=scaling,
            factor=rope.number("factor"),
            original_max_position=original,
            low_freq_factor=rope.number("low_freq_factor"),
            high_freq_factor=rope.number("high_freq_factor"),
        )
    return _yarn(rope, theta, original, max_position)


def _yarn(rope: ModelFields, theta: float, original: int, max_position: int) -> RopeConfig:
    if not rope.flag("truncate", default=True) or "mscale_all_dim" in rope:
        raise rope.unsupported("this variant of YaRN", _SUPPORTED)
    factor = rope.number("factor", max_position / original)
    return RopeConfig(
        theta=theta,
        scaling=RopeScaling.YARN,
        factor=factor,
        original_max_position=original,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        attention_factor=rope.number("attention_factor", yarn_attention_factor(factor)),
    )


def yarn_attention_factor(factor: float) -> float:
    """The scale of cos and sin that YaRN recommends (arXiv 2309.00071, eq. 22, square root taken)."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1.0 else 1.0
