"""GGUF metadata to our ModelConfig. Keys: llama.cpp's ``gguf-py/gguf/constants.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headway.engine.gguf_file import GgufFile
from headway.engine.hf_config import SOFT_CAPS, yarn_attention_factor
from headway.engine.model_config import Architecture, ModelConfig, RopeConfig, RopeScaling
from headway.engine.model_fields import ModelFields

# llama.cpp files Mistral under llama: the forward pass is the same.
_ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "llama": Architecture.LLAMA,
    "qwen2": Architecture.QWEN2,
    "qwen3": Architecture.QWEN3,
}
_SUPPORTED: Final = "use a GGUF of a Llama, Mistral, Qwen2 or Qwen3 (dense) model"
# Control tokens that end an answer besides the file's own, as llama.cpp finds them by their text.
_END_TEXTS: Final = frozenset({"<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end_of_text|>", "<|endoftext|>"})
_END_KEYS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")
CONTROL_TOKEN: Final = 3


def config_from_gguf(file: GgufFile, divisors: tuple[float, ...] = ()) -> ModelConfig:
    """Read the model's shape; ``divisors`` are the values of ``rope_freqs.weight`` if the file has it."""
    fields = ModelFields(str(file.path), file.metadata)
    name = fields.text("general.architecture")
    if name not in _ARCHITECTURES or fields.integer(f"{name}.expert_count", 0, minimum=0):
        shown = name if name not in _ARCHITECTURES else f"{name} with experts"
        raise fields.unsupported(f"the architecture {shown!r}", _SUPPORTED)
    for cap in SOFT_CAPS:
        if f"{name}.{cap}" in fields:
            raise fields.unsupported(f"a soft cap of logits ({name}.{cap})", _SUPPORTED)
    if "token_embd.weight" not in file.tensors:
        raise fields.unsupported("a GGUF without token_embd.weight", "fetch the whole model")
    heads, hidden = fields.integer(f"{name}.attention.head_count"), fields.integer(f"{name}.embedding_length")
    head_dim = fields.integer(f"{name}.attention.key_length", hidden // heads)
    if fields.integer(f"{name}.attention.value_length", head_dim) != head_dim:
        raise fields.unsupported("a value length other than the key length", _SUPPORTED)
    max_position = fields.integer(f"{name}.context_length")
    return ModelConfig(
        architecture=_ARCHITECTURES[name],
        vocab_size=file.tensors["token_embd.weight"].shape[0],
        hidden_size=hidden,
        intermediate_size=fields.integer(f"{name}.feed_forward_length"),
        layer_count=fields.integer(f"{name}.block_count"),
        query_head_count=heads,
        kv_head_count=_kv_head_count(fields, name, heads),
        head_dim=head_dim,
        norm_eps=fields.number(f"{name}.attention.layer_norm_rms_epsilon"),
        rope=_rope(fields, name, head_dim, max_position, divisors),
        max_position=max_position,
        tied_embeddings="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_down.bias" in file.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in file.tensors,
        sliding_window=_sliding_window(fields, name, max_position),
        bos_token_id=_token_id(fields, "bos_token_id"),
        eos_token_ids=eos_token_ids(file),
    )


def eos_token_ids(file: GgufFile) -> frozenset[int]:
    """Ids that end an answer: those the file names, and well-known control tokens of its vocabulary."""
    fields = ModelFields(str(file.path), file.metadata)
    named = {_token_id(fields, key) for key in _END_KEYS} - {None}
    tokens, types = file.metadata.get("tokenizer.ggml.tokens"), file.metadata.get("tokenizer.ggml.token_type")
    if isinstance(tokens, tuple) and isinstance(types, tuple):
        pairs = enumerate(zip(tokens, types, strict=False))
        named |= {index for index, (text, kind) in pairs if kind == CONTROL_TOKEN and text in _END_TEXTS}
    return frozenset(token_id for token_id in named if token_id is not None)


def _token_id(fields: ModelFields, key: str) -> int | None:
    full = f"tokenizer.ggml.{key}"
    return fields.integer(full, minimum=0) if full in fields else None


def _kv_head_count(fields: ModelFields, name: str, query_heads: int) -> int:
    key = f"{name}.attention.head_count_kv"
    count = fields.integer(key, query_heads)
    if query_heads % count:
        raise fields.wrong(key, f"a divisor of the {query_heads} query heads")
    return count


def _sliding_window(fields: ModelFields, name: str, max_position: int) -> int | None:
    window = fields.integer(f"{name}.attention.sliding_window", 0, minimum=0)
    return window if 0 < window < max_position else None


def _rope(
    fields: ModelFields, name: str, head_dim: int, max_position: int, divisors: tuple[float, ...]
) -> RopeConfig:
    if fields.integer(f"{name}.rope.dimension_count", head_dim) != head_dim:
        raise fields.unsupported("a partial rotary embedding", _SUPPORTED)
    theta = fields.number(f"{name}.rope.freq_base", 10_000.0)
    if divisors:
        if len(divisors) != head_dim // 2:
            raise fields.unsupported(f"rope_freqs.weight of {len(divisors)} values", _SUPPORTED)
        return RopeConfig(theta=theta, scaling=RopeScaling.DIVISORS, divisors=divisors)
    linear = f"{name}.rope.scale_linear"  # files from before August 2023
    kind = fields.text(f"{name}.rope.scaling.type", "linear" if linear in fields else "none")
    factor = fields.number(f"{name}.rope.scaling.factor", fields.number(linear, 1.0))
    if kind == "none" or factor == 1.0:
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, scaling=RopeScaling.LINEAR, factor=factor)
    if kind == "yarn":
        return _yarn(fields, f"{name}.rope.scaling", theta, factor, max_position)
    raise fields.unsupported(f"the RoPE scaling {kind!r}", _SUPPORTED)


def _yarn(fields: ModelFields, prefix: str, theta: float, factor: float, max_position: int) -> RopeConfig:
    """llama.cpp multiplies its stated attention factor (1 by default) with the recommended one."""
    stated = fields.number(f"{prefix}.attn_factor", 1.0)
    return RopeConfig(
        theta=theta,
        scaling=RopeScaling.YARN,
        factor=factor,
        original_max_position=fields.integer(f"{prefix}.original_context_length", max_position),
        beta_fast=fields.number(f"{prefix}.yarn_beta_fast", 32.0),
        beta_slow=fields.number(f"{prefix}.yarn_beta_slow", 1.0),
        attention_factor=stated * yarn_attention_factor(factor),
    )
