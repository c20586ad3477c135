"""A Hugging Face folder as a checkpoint, and what is said when it is not whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

from headway.engine.checkpoint import open_checkpoint
from headway.engine.errors import ModelError

if TYPE_CHECKING:
    from tests.engine.model_files.conftest import FolderWriter, GgufDraft

Config = dict[str, object]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_come_as_stored(dtype: torch.dtype, tiny_config: Config, write_folder: FolderWriter) -> None:
    folder = write_folder(tiny_config, dtype=dtype)
    checkpoint = open_checkpoint(folder)
    stored = load_file(folder / "model.safetensors")
    assert set(checkpoint.names()) == set(stored)
    for name in checkpoint.names():
        assert checkpoint.tensor(name).dtype is dtype
        assert torch.equal(checkpoint.tensor(name), stored[name])


def test_a_sharded_folder_equals_a_whole_one(tiny_config: Config, write_folder: FolderWriter) -> None:
    whole = open_checkpoint(write_folder(tiny_config))
    expected = {name: whole.tensor(name).clone() for name in whole.names()}
    sharded = open_checkpoint(write_folder(tiny_config, shards=3))
    assert list(sharded.names()) == list(whole.names())
    assert all(torch.equal(sharded.tensor(name), values) for name, values in expected.items())


def test_the_head_of_tied_embeddings_is_absent(tiny_config: Config, write_folder: FolderWriter) -> None:
    checkpoint = open_checkpoint(write_folder(tiny_config | {"tie_word_embeddings": True}))
    assert checkpoint.config.tied_embeddings
    assert "lm_head.weight" not in checkpoint.names()


def test_end_tokens_are_joined_from_all_files(
    tiny_config: Config, write_folder: FolderWriter, tokenizer_folder: Path
) -> None:
    folder = write_folder(tiny_config | {"eos_token_id": 0, "vocab_size": 700})
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    checkpoint = open_checkpoint(folder)
    end = checkpoint.tokenizer().encode("<|im_end|>", add_special_tokens=False)[0]
    assert tokenizer_folder == folder
    assert checkpoint.config.eos_token_ids == {0, 5, 6, end}
    assert checkpoint.tokenizer().eos_token_ids == checkpoint.config.eos_token_ids


def test_ids_that_the_model_has_beyond_the_vocabulary_are_unused(
    tiny_config: Config, write_folder: FolderWriter, tokenizer_folder: Path
) -> None:
    tokenizer = open_checkpoint(write_folder(tiny_config | {"vocab_size": 5000})).tokenizer()
    assert (tokenizer_folder / "tokenizer.json").exists()
    assert tokenizer.vocab_size == 5000
    assert tokenizer.token_bytes(4999) == b""
    assert tokenizer.token_label(4999) == "<unused 4999>"


def test_a_missing_shard_is_named(tiny_config: Config, write_folder: FolderWriter) -> None:
    folder = write_folder(tiny_config, shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00003\.safetensors.*missing"):
        open_checkpoint(folder)


def test_a_cut_off_file_is_named(tiny_config: Config, write_folder: FolderWriter) -> None:
    path = write_folder(tiny_config) / "model.safetensors"
    content = path.read_bytes()
    for length in (0, 5, 1000, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(ModelError, match=r"model\.safetensors.*damaged"):
            open_checkpoint(path.parent)


def test_a_missing_weight_is_told_at_open(tiny_config: Config, write_folder: FolderWriter) -> None:
    path = write_folder(tiny_config) / "model.safetensors"
    weights = load_file(path)
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, path)
    with pytest.raises(ModelError, match=r"layers\.1\.mlp\.up_proj\.weight.*missing"):
        open_checkpoint(path.parent)


def test_a_configuration_of_another_model_is_told_at_open(
    tiny_config: Config, write_folder: FolderWriter
) -> None:
    folder = write_folder(tiny_config)
    (folder / "config.json").write_text(json.dumps(tiny_config | {"num_key_value_heads": 4}))
    with pytest.raises(ModelError, match=r"k_proj.*\[64, 256\].*\[128, 256\]"):
        open_checkpoint(folder)


def test_eight_bit_floats_are_refused_by_name(tiny_config: Config, write_folder: FolderWriter) -> None:
    path = write_folder(tiny_config) / "model.safetensors"
    weights = load_file(path)
    name = "model.layers.0.mlp.up_proj.weight"
    save_file(weights | {name: weights[name].to(torch.float8_e4m3fn)}, path)
    with pytest.raises(ModelError, match=r"F8_E4M3.*bfloat16"):
        open_checkpoint(path.parent).tensor(name)


def test_pickled_weights_are_not_read(tiny_config: Config, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config))
    (tmp_path / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(ModelError, match=r"no \.safetensors"):
        open_checkpoint(tmp_path)


def test_shards_without_index_ask_for_it(tiny_config: Config, write_folder: FolderWriter) -> None:
    folder = write_folder(tiny_config, shards=2)
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors\.index\.json"):
        open_checkpoint(folder)


@pytest.mark.parametrize("content", ["", "{", "[1]", "\xff", '{"weight_map": 3}'])
def test_a_damaged_index_is_named(content: str, tiny_config: Config, write_folder: FolderWriter) -> None:
    folder = write_folder(tiny_config, shards=2)
    (folder / "model.safetensors.index.json").write_text(content, encoding="latin-1")
    with pytest.raises(ModelError, match=r"index\.json"):
        open_checkpoint(folder)


def test_a_folder_without_tokenizer_opens_but_has_none(
    tiny_config: Config, write_folder: FolderWriter
) -> None:
    checkpoint = open_checkpoint(write_folder(tiny_config))
    with pytest.raises(ModelError, match=r"tokenizer\.json.*missing"):
        checkpoint.tokenizer()


def test_folders_without_a_model_say_what_to_name(draft: GgufDraft, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"neither config\.json nor a \.gguf"):
        open_checkpoint(tmp_path)
    draft.write(tmp_path / "one.gguf")
    assert open_checkpoint(tmp_path).config.hidden_size == 256
    draft.write(tmp_path / "two.gguf")
    with pytest.raises(ModelError, match=r"2 GGUF files.*one\.gguf"):
        open_checkpoint(tmp_path)
    with pytest.raises(ModelError, match="no such file"):
        open_checkpoint(tmp_path / "absent")
