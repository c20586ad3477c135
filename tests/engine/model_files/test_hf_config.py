"""config.json in the spellings of several transformers versions, and refusals of what we cannot run."""

from __future__ import annotations

import math

import pytest

from headway.engine.errors import ModelError
from headway.engine.hf_config import config_from_hf
from headway.engine.model_config import Architecture, ModelConfig, RopeConfig, RopeScaling

BASE: dict[str, object] = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 8192,
}


def read(**changes: object) -> ModelConfig:
    return config_from_hf(BASE | changes, {}, source="config.json")


def test_absent_keys_have_the_defaults_of_transformers() -> None:
    config = read()
    assert (config.kv_head_count, config.head_dim, config.norm_eps) == (4, 16, 1e-6)
    assert config.rope == RopeConfig(theta=10_000.0)
    assert not any((config.tied_embeddings, config.qkv_bias, config.output_bias, config.mlp_bias))
    assert config.bos_token_id is None
    assert config.eos_token_ids == frozenset()


@pytest.mark.parametrize(
    ("family", "qkv_bias", "output_bias", "qk_norm", "head_dim"),
    [
        ("llama", False, False, False, 16),
        ("mistral", False, False, False, 16),
        ("qwen2", True, False, False, 16),
        ("qwen3", False, False, True, 128),
    ],
)
def test_families_differ_as_in_transformers(
    family: str, qkv_bias: bool, output_bias: bool, qk_norm: bool, head_dim: int
) -> None:
    config = read(model_type=family)
    assert config.architecture is Architecture(family)
    assert (config.qkv_bias, config.output_bias, config.qk_norm) == (qkv_bias, output_bias, qk_norm)
    assert config.head_dim == head_dim


def test_attention_bias_of_a_llama_is_on_all_four() -> None:
    config = read(attention_bias=True)
    assert config.qkv_bias
    assert config.output_bias


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"rope_theta": 5e5}, RopeConfig(theta=5e5)),
        ({"rope_scaling": None, "rope_theta": 5e5}, RopeConfig(theta=5e5)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}}, RopeConfig(theta=1e5)),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}},
            RopeConfig(scaling=RopeScaling.LINEAR, factor=2.0),
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": LLAMA3},
            RopeConfig(
                theta=5e5,
                scaling=RopeScaling.LLAMA3,
                factor=32.0,
                original_max_position=8192,
                low_freq_factor=1.0,
            ),
        ),
        (
            {"rope_parameters": LLAMA3 | {"rope_theta": 5e5}},
            RopeConfig(theta=5e5, scaling=RopeScaling.LLAMA3, factor=32.0, original_max_position=8192),
        ),
        (
            {"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}},
            RopeConfig(
                scaling=RopeScaling.YARN,
                factor=4.0,
                original_max_position=2048,
                attention_factor=0.1 * math.log(4.0) + 1.0,
            ),
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5, "beta_fast": 16}},
            RopeConfig(
                scaling=RopeScaling.YARN,
                factor=4.0,
                original_max_position=8192,
                attention_factor=1.5,
                beta_fast=16.0,
            ),
        ),
    ],
)
def test_rope_in_old_and_new_spelling(changes: dict[str, object], expected: RopeConfig) -> None:
    assert read(**changes).rope == expected


@pytest.mark.parametrize(
    ("changes", "window"),
    [
        ({"model_type": "llama", "sliding_window": 1024}, None),
        ({"model_type": "mistral", "sliding_window": 1024}, 1024),
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "mistral"}, 4096),
        ({"model_type": "mistral", "sliding_window": 8192}, None),
        ({"model_type": "qwen2", "sliding_window": 1024, "use_sliding_window": False}, None),
        ({"model_type": "qwen2", "sliding_window": 1024, "use_sliding_window": True}, None),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 1024,
                "use_sliding_window": True,
                "max_window_layers": 0,
            },
            1024,
        ),
    ],
)
def test_the_sliding_window_is_that_of_transformers(changes: dict[str, object], window: int | None) -> None:
    assert read(**changes).sliding_window == window


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "gemma3"}, r"'gemma3'.*Llama, Mistral"),
        ({"model_type": "qwen3_moe"}, "qwen3_moe"),
        ({"quantization_config": {"quant_method": "gptq"}}, "gptq.*GGUF"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"attn_logit_softcapping": 50.0}, r"soft cap of logits \(attn_logit_softcapping\)"),
        ({"final_logit_softcapping": 30.0}, r"soft cap of logits \(final_logit_softcapping\)"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "longrope"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": False}}, "YaRN"),
        ({"partial_rotary_factor": 0.5}, "partial rotary"),
        ({"num_key_value_heads": 3}, "divisor"),
        ({"max_position_embeddings": None}, "max_position_embeddings is missing"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"hidden_size": -1}, "hidden_size is -1"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"rms_norm_eps": float("inf")}, "rms_norm_eps"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ({"rope_scaling": [1]}, "rope_scaling"),
        ({"eos_token_id": ["</s>"]}, "eos_token_id"),
        (
            {
                "model_type": "qwen2",
                "sliding_window": 64,
                "use_sliding_window": True,
                "max_window_layers": 2,
            },
            "some layers",
        ),
    ],
)
def test_what_cannot_run_is_refused_with_the_key(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(ModelError, match=reason) as caught:
        read(**changes)
    assert str(caught.value).startswith("config.json")


def test_end_tokens_of_both_files_count() -> None:
    config = config_from_hf(BASE | {"eos_token_id": 2}, {"eos_token_id": [3, 4]}, source="config.json")
    assert config.eos_token_ids == {2, 3, 4}
