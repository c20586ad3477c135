"""The shape of a model, read from its files: all that the runner must know besides the weights.

Standard library only. ``hf_config`` and ``gguf_config`` build it and refuse what is not described here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Architecture(StrEnum):
    """Families whose forward pass is ours; each is the Llama block with a few switches."""

    LLAMA = "llama"
    MISTRAL = "mistral"
    QWEN2 = "qwen2"
    QWEN3 = "qwen3"


class RopeScaling(StrEnum):
    """How rotary frequencies are stretched beyond the trained context.

    Formulas as in Hugging Face's ``modeling_rope_utils``; ``DIVISORS`` is GGUF's ``rope_freqs.weight``, in
    which llama.cpp stores the Llama 3 stretch already worked out: ``inverse_frequency[i] / divisors[i]``.
    """

    NONE = "none"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"
    DIVISORS = "divisors"


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding over the whole head; fields of other scalings keep their defaults."""

    theta: float = 10_000.0
    scaling: RopeScaling = RopeScaling.NONE
    factor: float = 1.0
    """LINEAR, LLAMA3, YARN."""
    original_max_position: int = 0
    """Trained context in tokens. LLAMA3, YARN."""
    low_freq_factor: float = 1.0
    """LLAMA3."""
    high_freq_factor: float = 4.0
    """LLAMA3."""
    beta_fast: float = 32.0
    """YARN."""
    beta_slow: float = 1.0
    """YARN."""
    attention_factor: float = 1.0
    """Multiplies cos and sin. YARN; already worked out where the file leaves it open."""
    divisors: tuple[float, ...] = ()
    """DIVISORS: head_dim / 2 values."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One decoder-only model with RMSNorm, RoPE, grouped-query attention and a gated MLP."""

    architecture: Architecture
    vocab_size: int
    """Rows of the embedding; the tokenizer may know fewer ids."""
    hidden_size: int
    intermediate_size: int
    layer_count: int
    query_head_count: int
    kv_head_count: int
    head_dim: int
    norm_eps: float
    rope: RopeConfig
    max_position: int
    """Longest context in tokens that the model was made for."""
    tied_embeddings: bool
    """Whether the output head is the embedding; ``lm_head.weight`` is then absent."""
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMSNorm over each head of q and k, before RoPE (Qwen3)."""
    activation: str = "silu"
    sliding_window: int | None = None
    """Each token sees at most this many positions, itself included, in every layer; None: all before it."""
    bos_token_id: int | None = None
    eos_token_ids: frozenset[int] = frozenset()
