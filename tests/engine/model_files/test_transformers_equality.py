"""The same files read by Hugging Face transformers give the same weights, ids, prompts and shapes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import gguf
import numpy as np
import pytest
import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)
from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor

from headway.engine.checkpoint import Checkpoint, open_checkpoint
from headway.engine.hf_config import config_from_hf
from headway.engine.interfaces import Tokenizer

if TYPE_CHECKING:
    from tests.engine.model_files.conftest import GgufDraft, TrainedVocabulary

CONVERSATIONS: Sequence[list[dict[str, str]]] = (
    [{"role": "user", "content": "Hi"}],
    [{"role": "system", "content": "Be brief.\n"}, {"role": "user", "content": "¿Qué? 🎉 <b>&</b>"}],
    [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": "  and 2+2?  "},
    ],
    [{"role": "user", "content": "<|im_end|>\n<|im_start|>system\nnested"}],
)
TEMPLATE = "{% for m in messages %}{{ bos_token + m.role + '\n' + m.content + eos_token }}{% endfor %}"
# transformers builds GPT-2's splitting for SmolLM2's GGUF, without the digits rule that the file names.
DIGITS_DIFFER = "0123456789½²\u0663\u0664\u0665"


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Checkpoint:
    return open_checkpoint(smollm2_path)


@pytest.fixture(scope="module")
def smollm2_reference(smollm2_path: Path) -> Any:
    return AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)


@pytest.fixture(scope="module")
def smollm2_config(smollm2_path: Path) -> PreTrainedConfig:
    return cast(
        PreTrainedConfig, AutoConfig.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    )


def test_weights_of_smollm2_are_equal(
    smollm2: Checkpoint, smollm2_path: Path, smollm2_config: PreTrainedConfig
) -> None:
    """Named and dequantized by the gguf package, put in order by transformers; three layers and the rest."""
    processor = cast(Any, LlamaTensorProcessor)(config=smollm2_config.to_dict())
    stored_names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 30)
    entries = {entry.name: entry for entry in gguf.GGUFReader(smollm2_path).tensors}
    assert len(smollm2.names()) == len(entries)
    for name in smollm2.names():
        if name.startswith("model.layers.") and name.split(".")[2] not in {"0", "17", "29"}:
            continue
        entry = entries[str(stored_names.get_name(name, try_suffixes=(".weight",)))]
        values = gguf.dequantize(entry.data, entry.tensor_type)
        values = processor.process(values, entry.name).weights
        assert torch.equal(smollm2.tensor(name), torch.from_numpy(np.array(values))), name


def test_the_shape_of_smollm2_is_equal(smollm2: Checkpoint, smollm2_config: PreTrainedConfig) -> None:
    ours = smollm2.config
    through_hf = config_from_hf(smollm2_config.to_dict(), {}, source="reference")
    assert ours.eos_token_ids >= through_hf.eos_token_ids
    for field in (
        "rope",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "layer_count",
        "query_head_count",
    ):
        assert getattr(ours, field) == getattr(through_hf, field)
    for field in ("kv_head_count", "head_dim", "norm_eps", "max_position", "tied_embeddings", "bos_token_id"):
        assert getattr(ours, field) == getattr(through_hf, field)


def test_ids_of_smollm2_are_equal(smollm2: Checkpoint, smollm2_reference: Any, corpus: Sequence[str]) -> None:
    tokenizer = smollm2.tokenizer()
    for text in corpus:
        if set(text).isdisjoint(DIGITS_DIFFER):
            assert tokenizer.encode(text, add_special_tokens=True) == tuple(smollm2_reference.encode(text)), (
                text
            )


def test_decoded_text_of_smollm2_is_equal(
    smollm2: Checkpoint, smollm2_reference: Any, corpus: Sequence[str]
) -> None:
    tokenizer = smollm2.tokenizer()
    for text in (*corpus, "<|im_start|>user\nhi<|im_end|>\n", "\x04 dropped, \U0010ffff not known"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        decoded = b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8", "replace")
        assert decoded == smollm2_reference.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("messages", CONVERSATIONS)
def test_chats_of_smollm2_are_equal(
    messages: list[dict[str, str]], smollm2: Checkpoint, smollm2_reference: Any
) -> None:
    text = smollm2_reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    tokenizer = smollm2.tokenizer()
    assert tokenizer.render_chat(messages) == tokenizer.encode(text, add_special_tokens=False)
    if set(text).isdisjoint(DIGITS_DIFFER):
        assert tokenizer.render_chat(messages) == tuple(
            smollm2_reference.encode(text, add_special_tokens=False)
        )


def gguf_tokenizers(draft: GgufDraft, folder: Path) -> tuple[Tokenizer, Any]:
    """Ours and transformers' tokenizer of the same file."""
    path = draft.write(folder / "tiny.gguf")
    reference = AutoTokenizer.from_pretrained(folder, gguf_file=path.name)
    return open_checkpoint(path).tokenizer(), reference


@pytest.mark.parametrize("pre", ["default", "gpt-2", "llama-bpe", "qwen2", "tekken"])
def test_byte_level_ids_are_equal(
    pre: str,
    draft: GgufDraft,
    byte_level_vocabulary: TrainedVocabulary,
    tmp_path: Path,
    corpus: Sequence[str],
) -> None:
    draft.fields |= {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": byte_level_vocabulary.tokens,
        "tokenizer.ggml.merges": byte_level_vocabulary.merges,
        "tokenizer.ggml.token_type": byte_level_vocabulary.types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": True,
    }
    ours, reference = gguf_tokenizers(draft, tmp_path)
    for text in (*corpus, "a<|im_start|>b<think>c <|im_end|> d"):
        ids = ours.encode(text, add_special_tokens=True)
        assert ids == tuple(reference.encode(text)), text
        decoded = b"".join(map(ours.token_bytes, ids)).decode("utf-8", "replace")
        assert decoded == reference.decode(ids, skip_special_tokens=True)


def test_sentencepiece_ids_are_equal(
    draft: GgufDraft, sentencepiece_vocabulary: TrainedVocabulary, tmp_path: Path, corpus: Sequence[str]
) -> None:
    draft.fields |= {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": sentencepiece_vocabulary.tokens,
        "tokenizer.ggml.scores": sentencepiece_vocabulary.scores,
        "tokenizer.ggml.token_type": sentencepiece_vocabulary.types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    ours, reference = gguf_tokenizers(draft, tmp_path)
    for text in (*corpus, "unknown ꙮ 𐍈", "a<s>b</s> c"):
        ids = ours.encode(text, add_special_tokens=True)
        assert ids == tuple(reference.encode(text)), text
        decoded = b"".join(map(ours.token_bytes, ids)).decode("utf-8", "replace")
        # transformers' decoder drops the space that was put before the first word.
        assert decoded.removeprefix(" ") == reference.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize(
    "flags", [{}, {"add_bos_token": True}, {"add_bos_token": True, "add_eos_token": True}]
)
def test_ids_and_chats_of_a_folder_are_equal(
    *,
    flags: dict[str, bool],
    tiny_config: dict[str, object],
    write_folder: Any,
    tokenizer_folder: Path,
    tmp_path: Path,
    corpus: Sequence[str],
) -> None:
    backend = cast(Any, PreTrainedTokenizerFast)(
        tokenizer_file=str(tokenizer_folder / "tokenizer.json"),
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        chat_template=TEMPLATE,
        **flags,
    )
    folder = write_folder(tiny_config | {"vocab_size": 700})
    backend.save_pretrained(folder)
    reference = cast(Any, AutoTokenizer.from_pretrained(folder))
    ours = open_checkpoint(folder).tokenizer()
    for text in (*corpus, "a<|im_start|>b<think>c <|im_end|> d"):
        assert ours.encode(text, add_special_tokens=True) == tuple(reference.encode(text)), text
    for messages in CONVERSATIONS:
        text = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert ours.render_chat(messages) == tuple(reference.encode(text, add_special_tokens=False))


TINY: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**TINY),
        LlamaConfig(**TINY, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
        MistralConfig(**TINY, head_dim=32),
        Qwen2Config(**TINY),
        Qwen3Config(**TINY),
    ],
    ids=lambda config: config.model_type,
)
def test_folders_saved_by_transformers_open_with_equal_weights(
    config: PreTrainedConfig, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = cast(Any, AutoModelForCausalLM).from_config(config)
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    checkpoint = open_checkpoint(tmp_path)
    stored = dict(model.state_dict())
    assert set(checkpoint.names()) == set(stored) - (
        {"lm_head.weight"} if config.tie_word_embeddings else set()
    )
    assert all(torch.equal(checkpoint.tensor(name), stored[name]) for name in checkpoint.names())
    assert checkpoint.config.max_position == config.max_position_embeddings
    assert checkpoint.config.rope.theta == config.rope_parameters["rope_theta"]
    assert checkpoint.config.norm_eps == config.rms_norm_eps
    assert len(list(tmp_path.glob("*.safetensors"))) > 1


@pytest.mark.parametrize("kind", [LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config])
def test_defaults_are_those_of_the_configuration_classes(kind: type[PreTrainedConfig]) -> None:
    settings = TINY | {"max_position_embeddings": 1024}
    reference = kind(**settings)
    ours = config_from_hf(settings | {"model_type": kind.model_type}, {}, source="test")
    assert ours.norm_eps == reference.rms_norm_eps
    assert ours.tied_embeddings == reference.tie_word_embeddings
    assert ours.rope.theta == reference.rope_parameters["rope_theta"]
    assert ours.head_dim == (getattr(reference, "head_dim", None) or 16)
