"""A GGUF as a checkpoint: Hugging Face's names and layout, and clear refusals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import quantize
from numpy.typing import NDArray

from headway.engine.checkpoint import open_checkpoint
from headway.engine.errors import ModelError
from headway.engine.model_config import Architecture, RopeScaling

if TYPE_CHECKING:
    from tests.engine.model_files.conftest import GgufDraft

Q = GGMLQuantizationType


def permute(weights: NDArray[np.generic], heads: int) -> NDArray[np.generic]:
    """As llama.cpp's convert_hf_to_gguf.py reorders q and k for its pairwise RoPE."""
    halves = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return halves.swapaxes(1, 2).reshape(weights.shape)


def as_architecture(draft: GgufDraft, name: str) -> GgufDraft:
    draft.architecture = name
    draft.fields = {key.replace("llama.", f"{name}."): value for key, value in draft.fields.items()}
    return draft


def test_the_shape_is_read_from_the_metadata(draft: GgufDraft, tmp_path: Path) -> None:
    config = open_checkpoint(draft.write(tmp_path / "tiny.gguf")).config
    assert config.architecture is Architecture.LLAMA
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (320, 256, 256)
    assert (config.layer_count, config.query_head_count, config.kv_head_count) == (2, 8, 2)
    assert (config.head_dim, config.max_position, config.rope.theta) == (32, 512, 50000.0)
    assert config.norm_eps == pytest.approx(1e-5)
    assert not config.tied_embeddings
    assert not any((config.qkv_bias, config.output_bias, config.mlp_bias, config.qk_norm))


def test_llama_query_and_key_rows_come_back_in_hugging_face_order(draft: GgufDraft, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    q = rng.standard_normal((256, 256)).astype(np.float32)
    k = rng.standard_normal((64, 256)).astype(np.float32)
    bias = rng.standard_normal(256).astype(np.float32)
    draft.put("blk.0.attn_q.weight", permute(q, 8))
    draft.put("blk.0.attn_k.weight", permute(k, 2))
    for layer in range(2):
        draft.put(f"blk.{layer}.attn_q.bias", permute(bias, 8))
        draft.put(f"blk.{layer}.attn_k.bias", np.zeros(64, np.float32))
        draft.put(f"blk.{layer}.attn_v.bias", np.zeros(64, np.float32))
    checkpoint = open_checkpoint(draft.write(tmp_path / "tiny.gguf"))
    assert checkpoint.config.qkv_bias
    attention = "model.layers.0.self_attn"
    assert torch.equal(checkpoint.tensor(f"{attention}.q_proj.weight"), torch.from_numpy(q))
    assert torch.equal(checkpoint.tensor(f"{attention}.k_proj.weight"), torch.from_numpy(k))
    assert torch.equal(checkpoint.tensor(f"{attention}.q_proj.bias"), torch.from_numpy(bias))


@pytest.mark.parametrize("name", ["qwen2", "qwen3"])
def test_qwen_rows_stay_as_they_are(name: str, draft: GgufDraft, tmp_path: Path) -> None:
    as_architecture(draft, name)
    if name == "qwen3":
        for layer in range(2):
            draft.put(f"blk.{layer}.attn_q_norm.weight", np.ones(32, np.float32))
            draft.put(f"blk.{layer}.attn_k_norm.weight", np.ones(32, np.float32))
    checkpoint = open_checkpoint(draft.write(tmp_path / "tiny.gguf"))
    assert checkpoint.config.architecture is Architecture(name)
    assert checkpoint.config.qk_norm is (name == "qwen3")
    stored = draft.tensors["blk.1.attn_q.weight"][0]
    assert np.array_equal(checkpoint.tensor("model.layers.1.self_attn.q_proj.weight").numpy(), stored)


def test_every_named_weight_is_there_with_the_stored_values(draft: GgufDraft, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(draft.write(tmp_path / "tiny.gguf"))
    assert len(checkpoint.names()) == len(draft.tensors)
    assert checkpoint.names()[0] == "model.embed_tokens.weight"
    for name, stored in {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
        "model.layers.1.input_layernorm.weight": "blk.1.attn_norm.weight",
        "model.layers.1.post_attention_layernorm.weight": "blk.1.ffn_norm.weight",
        "model.layers.1.self_attn.v_proj.weight": "blk.1.attn_v.weight",
        "model.layers.1.self_attn.o_proj.weight": "blk.1.attn_output.weight",
        "model.layers.1.mlp.gate_proj.weight": "blk.1.ffn_gate.weight",
        "model.layers.1.mlp.up_proj.weight": "blk.1.ffn_up.weight",
        "model.layers.1.mlp.down_proj.weight": "blk.1.ffn_down.weight",
    }.items():
        assert np.array_equal(checkpoint.tensor(name).numpy(), draft.tensors[stored][0]), name


@pytest.mark.parametrize("kind", [Q.F32, Q.F16, Q.BF16], ids=lambda kind: kind.name)
def test_unquantized_weights_keep_their_dtype(kind: Q, draft: GgufDraft, tmp_path: Path) -> None:
    values = draft.tensors["blk.0.attn_q.weight"][0].astype(np.float32)
    draft.put("blk.0.attn_q.weight", quantize(permute(values, 8).astype(np.float32), kind), kind)
    weight = open_checkpoint(draft.write(tmp_path / "tiny.gguf")).tensor(
        "model.layers.0.self_attn.q_proj.weight"
    )
    dtype = {Q.F32: torch.float32, Q.F16: torch.float16, Q.BF16: torch.bfloat16}[kind]
    assert weight.dtype is dtype
    assert torch.equal(weight, torch.from_numpy(values).to(dtype))


@pytest.mark.parametrize("kind", [Q.Q8_0, Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1], ids=lambda kind: kind.name)
def test_quantized_weights_come_close_to_the_originals(kind: Q, draft: GgufDraft, tmp_path: Path) -> None:
    values = draft.tensors["blk.0.attn_q.weight"][0].astype(np.float32)
    draft.put("blk.0.attn_q.weight", quantize(permute(values, 8).astype(np.float32), kind), kind)
    weight = open_checkpoint(draft.write(tmp_path / "tiny.gguf")).tensor(
        "model.layers.0.self_attn.q_proj.weight"
    )
    assert weight.dtype is torch.float32
    # Half a quantization step of the widest block, with the extreme value on one side (Q4_0's −8).
    steps = {Q.Q8_0: 127, Q.Q4_0: 8, Q.Q4_1: 15, Q.Q5_0: 16, Q.Q5_1: 31}[kind]
    widest = float(np.ptp(values)) if kind in {Q.Q4_1, Q.Q5_1} else float(np.abs(values).max())
    assert float((weight - torch.from_numpy(values)).abs().max()) <= 1.01 * widest / steps


@pytest.mark.parametrize("kind", [Q.Q4_K, Q.Q5_K, Q.Q6_K], ids=lambda kind: kind.name)
def test_k_quants_are_loaded_in_the_right_layout(kind: Q, draft: GgufDraft, tmp_path: Path) -> None:
    block_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    raw = np.random.default_rng(2).integers(0, 60, (256, block_bytes), dtype=np.uint8)
    draft.put("blk.0.attn_q.weight", raw, kind)
    draft.put("blk.0.ffn_down.weight", raw, kind)
    checkpoint = open_checkpoint(draft.write(tmp_path / "tiny.gguf"))
    values = gguf.dequantize(raw, kind)
    assert np.array_equal(checkpoint.tensor("model.layers.0.mlp.down_proj.weight").numpy(), values)
    q = checkpoint.tensor("model.layers.0.self_attn.q_proj.weight").numpy()
    assert np.array_equal(permute(q, 8), values)


def test_without_output_weight_the_embedding_is_the_head(draft: GgufDraft, tmp_path: Path) -> None:
    del draft.tensors["output.weight"]
    checkpoint = open_checkpoint(draft.write(tmp_path / "tiny.gguf"))
    assert checkpoint.config.tied_embeddings
    assert "lm_head.weight" not in checkpoint.names()


def test_a_split_model_loads_from_its_folder(draft: GgufDraft, tmp_path: Path) -> None:
    draft.write(tmp_path / "tiny.gguf", split=8)
    checkpoint = open_checkpoint(tmp_path)
    assert np.array_equal(checkpoint.tensor("lm_head.weight").numpy(), draft.tensors["output.weight"][0])


def test_llama_3_rope_divisors_come_from_their_tensor(draft: GgufDraft, tmp_path: Path) -> None:
    draft.put("rope_freqs.weight", np.linspace(1, 8, 16).astype(np.float32))
    rope = open_checkpoint(draft.write(tmp_path / "tiny.gguf")).config.rope
    assert rope.scaling is RopeScaling.DIVISORS
    assert rope.divisors == pytest.approx(np.linspace(1, 8, 16))


def test_rope_scalings_of_the_metadata(draft: GgufDraft, tmp_path: Path) -> None:
    draft.fields |= {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    rope = open_checkpoint(draft.write(tmp_path / "linear.gguf")).config.rope
    assert (rope.scaling, rope.factor) == (RopeScaling.LINEAR, 4.0)
    draft.fields |= {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.original_context_length": 128}
    rope = open_checkpoint(draft.write(tmp_path / "yarn.gguf")).config.rope
    assert (rope.scaling, rope.factor, rope.original_max_position) == (RopeScaling.YARN, 4.0, 128)
    assert rope.attention_factor == pytest.approx(0.1 * np.log(4.0) + 1.0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"general.architecture": "mamba"}, r"architecture 'mamba'.*Llama, Mistral"),
        ({"llama.expert_count": 8}, "experts"),
        ({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0}, "longrope"),
        ({"llama.rope.dimension_count": 16}, "partial rotary"),
        ({"llama.attention.value_length": 16}, "value length"),
        ({"llama.attn_logit_softcapping": 50.0}, "soft cap of logits"),
        ({"llama.final_logit_softcapping": 30.0}, "soft cap of logits"),
        ({"llama.attention.head_count_kv": 3}, "divisor"),
        ({"llama.attention.head_count_kv": [2, 2]}, "head_count_kv"),
        ({"llama.block_count": "two"}, "block_count"),
        ({"llama.block_count": 3}, r"layers\.2\..*missing"),
        ({"llama.feed_forward_length": 512}, r"gate_proj.*\[256, 256\].*\[512, 256\]"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "epsilon"),
    ],
)
def test_what_cannot_run_is_refused_at_open(
    change: dict[str, object], reason: str, draft: GgufDraft, tmp_path: Path
) -> None:
    draft.architecture = str(change.pop("general.architecture", draft.architecture))
    draft.fields |= change
    with pytest.raises(ModelError, match=reason) as caught:
        open_checkpoint(draft.write(tmp_path / "tiny.gguf"))
    assert "tiny.gguf" in str(caught.value)


@pytest.mark.parametrize("key", ["block_count", "embedding_length", "context_length", "attention.head_count"])
def test_missing_metadata_is_named(key: str, draft: GgufDraft, tmp_path: Path) -> None:
    del draft.fields[f"llama.{key}"]
    with pytest.raises(ModelError, match=rf"llama\.{key} is missing"):
        open_checkpoint(draft.write(tmp_path / "tiny.gguf"))


@pytest.mark.parametrize("name", ["blk.1.ffn_up.weight", "output_norm.weight", "token_embd.weight"])
def test_a_missing_tensor_is_told_at_open(name: str, draft: GgufDraft, tmp_path: Path) -> None:
    del draft.tensors[name]
    with pytest.raises(ModelError, match=r"tiny\.gguf.*(missing|without)"):
        open_checkpoint(draft.write(tmp_path / "tiny.gguf"))


def test_a_type_without_dequantizer_is_named_with_its_tensor(draft: GgufDraft, tmp_path: Path) -> None:
    draft.put("blk.0.ffn_up.weight", np.zeros((256, 256), dtype=np.int8))
    checkpoint = open_checkpoint(draft.write(tmp_path / "tiny.gguf"))
    with pytest.raises(ModelError, match=r"tiny\.gguf.*blk\.0\.ffn_up.*I8.*requantize"):
        checkpoint.tensor("model.layers.0.mlp.up_proj.weight")


def test_an_unknown_weight_is_named(draft: GgufDraft, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"rotary\.weight"):
        open_checkpoint(draft.write(tmp_path / "tiny.gguf")).tensor("model.rotary.weight")


def test_a_model_without_tokenizer_says_so(draft: GgufDraft, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="tokenizer"):
        open_checkpoint(draft.write(tmp_path / "tiny.gguf")).tokenizer()
