"""Tiny models written on the fly, and the packaged real one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType, GGUFEndian
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from headway.engine.errors import ModelError
from headway.engine.hf_config import config_from_hf
from headway.engine.model_source import resolve_model
from headway.engine.weight_shapes import weight_shapes

CORPUS: Sequence[str] = (
    "The quick brown fox jumps over the lazy dog, don't WE'LL they've.",
    "naïve café — “quotes” … Ünïcödé straße İstanbul",
    "日本語のテキスト、中文文本。한국어 텍스트",
    "🎉 party 👩‍👩‍👧‍👦 family 🇩🇪 flag ½ ² ٣٤٥",
    "def f(x):\n\treturn x**2  # squared\n\n\n    if a:\r\n        pass\n",
    "  leading   and    runs  of spaces \t\t tabs   ",
    "3.14159 12345 1,000,000 2024-01-01 x1y22",
    "HTTPServer camelCase snake_case PATH/to/file.py <a href='x'>&amp;</a>",
    "",
    " ",
    "\n\n \n",
    "a" * 200,
)


@pytest.fixture(scope="session")
def corpus() -> Sequence[str]:
    """Texts that tell pre-tokenizers apart."""
    return CORPUS


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    try:
        return resolve_model("smollm2-135m").path
    except ModelError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture
def tiny_config() -> dict[str, object]:
    """A Llama small enough to write in no time, with grouped queries and widths that K quants can hold."""
    return {
        "model_type": "llama",
        "vocab_size": 320,
        "hidden_size": 256,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 50000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


FolderWriter = Callable[..., Path]


@pytest.fixture
def write_folder(tmp_path: Path) -> FolderWriter:
    """Write config.json and random weights; ``shards`` > 1 also writes the index."""

    def write(config: Mapping[str, object], *, shards: int = 0, dtype: torch.dtype = torch.float32) -> Path:
        folder = tmp_path / "model"
        folder.mkdir(exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        torch.manual_seed(0)
        shapes = weight_shapes(config_from_hf(config, {}, source="test"))
        weights = {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}
        if not shards:
            save_file(weights, folder / "model.safetensors")
            return folder
        names = list(weights)
        files = {
            name: f"model-{i % shards + 1:05d}-of-{shards:05d}.safetensors" for i, name in enumerate(names)
        }
        for file in set(files.values()):
            save_file({name: weights[name] for name in names if files[name] == file}, folder / file)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
        return folder

    return write


@dataclass
class GgufDraft:
    """What a GGUF will hold; tests change it before writing."""

    architecture: str = "llama"
    fields: dict[str, object] = field(default_factory=dict[str, object])
    tensors: dict[str, tuple[NDArray[np.generic], GGMLQuantizationType | None]] = field(default_factory=dict)

    def put(self, name: str, values: NDArray[np.generic], kind: GGMLQuantizationType | None = None) -> None:
        """Add or replace a tensor; quantized ones as rows of bytes with their ``kind``."""
        self.tensors[name] = (values, kind)

    def write(self, path: Path, *, endian: GGUFEndian = GGUFEndian.LITTLE, split: int = 0) -> Path:
        """Write the file (the first part when ``split`` tensors go into each)."""
        writer = gguf.GGUFWriter(path, self.architecture, endianess=endian, split_max_tensors=split)
        for key, value in self.fields.items():
            _add_field(writer, key, value)
        for name, (values, kind) in self.tensors.items():
            writer.add_tensor(name, values, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def _add_field(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        assert isinstance(value, list | tuple)
        writer.add_array(key, value)


@pytest.fixture
def draft() -> GgufDraft:
    """A complete tiny llama in float32, rows of q and k in llama.cpp's order, without a tokenizer."""
    rng = np.random.default_rng(0)
    hidden, inner, vocab, heads, kv_heads, head_dim = 256, 256, 320, 8, 2, 32

    def random(*shape: int) -> NDArray[np.float32]:
        return rng.standard_normal(shape).astype(np.float32)

    result = GgufDraft(
        fields={
            "llama.block_count": 2,
            "llama.context_length": 512,
            "llama.embedding_length": hidden,
            "llama.feed_forward_length": inner,
            "llama.attention.head_count": heads,
            "llama.attention.head_count_kv": kv_heads,
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "llama.rope.freq_base": 50000.0,
            "llama.rope.dimension_count": head_dim,
        }
    )
    result.put("token_embd.weight", random(vocab, hidden))
    for layer in range(2):
        block = f"blk.{layer}"
        result.put(f"{block}.attn_norm.weight", random(hidden))
        result.put(f"{block}.ffn_norm.weight", random(hidden))
        result.put(f"{block}.attn_q.weight", random(heads * head_dim, hidden))
        result.put(f"{block}.attn_k.weight", random(kv_heads * head_dim, hidden))
        result.put(f"{block}.attn_v.weight", random(kv_heads * head_dim, hidden))
        result.put(f"{block}.attn_output.weight", random(hidden, heads * head_dim))
        result.put(f"{block}.ffn_gate.weight", random(inner, hidden))
        result.put(f"{block}.ffn_up.weight", random(inner, hidden))
        result.put(f"{block}.ffn_down.weight", random(hidden, inner))
    result.put("output_norm.weight", random(hidden))
    result.put("output.weight", random(vocab, hidden))
    return result


@dataclass(frozen=True)
class TrainedVocabulary:
    """A small BPE vocabulary in the tables of a GGUF."""

    tokens: list[str]
    merges: list[str]
    scores: list[float]
    types: list[int]


NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


@pytest.fixture(scope="session")
def byte_level_vocabulary() -> TrainedVocabulary:
    """Byte-level BPE: three control tokens, <think> as a user-defined one, then bytes and merges."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    control = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=control,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([*CORPUS] * 3, trainer)
    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=lambda token: int(model["vocab"][token]))
    types = [CONTROL] * 3 + [USER_DEFINED] + [NORMAL] * (len(tokens) - 4)
    return TrainedVocabulary(tokens, [" ".join(pair) for pair in model["merges"]], [], types)


@pytest.fixture(scope="session")
def sentencepiece_vocabulary() -> TrainedVocabulary:
    """SentencePiece-like: <unk>, <s>, </s>, 256 byte tokens, characters and merged pieces with scores."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False)
    backend.train_from_iterator([*CORPUS] * 3, trainer)
    model = json.loads(backend.to_str())["model"]
    pieces = sorted(model["vocab"], key=lambda token: int(model["vocab"][token]))
    tokens = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], *pieces]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(pieces))]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)]
    return TrainedVocabulary(tokens, [], scores, types)


@pytest.fixture
def tokenizer_folder(tmp_path: Path, byte_level_vocabulary: TrainedVocabulary) -> Path:
    """A folder with tokenizer.json (byte-level) and tokenizer_config.json, but no model."""
    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    ids = {token: index for index, token in enumerate(byte_level_vocabulary.tokens)}
    merges = [(left, right) for left, right in (merge.split(" ") for merge in byte_level_vocabulary.merges)]
    backend = Tokenizer(models.BPE(ids, merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>", "<|im_start|>"])
    backend.add_tokens(["<think>"])
    backend.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "add_bos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
