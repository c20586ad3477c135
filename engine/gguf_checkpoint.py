"""A GGUF file as a Checkpoint: llama.cpp's names and layout turned into Hugging Face's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from gguf.constants import GGMLQuantizationType

from headway.engine.dequantize import PLAIN_DTYPES, dequantize
from headway.engine.errors import ModelError
from headway.engine.gguf_config import config_from_gguf
from headway.engine.gguf_file import GgufFile, GgufTensor, open_gguf
from headway.engine.gguf_tokenizer import tokenizer_from_gguf
from headway.engine.interfaces import Tokenizer
from headway.engine.model_config import Architecture, ModelConfig
from headway.engine.weight_shapes import Shape, check_weights, weight_shapes
from headway.kernels.weight_rows import WeightKind, WeightRows, gguf_rows

_GLOBAL_NAMES: Final[Mapping[str, str]] = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_LAYER_NAMES: Final[Mapping[str, str]] = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_KERNEL_KINDS: Final[Mapping[GGMLQuantizationType, WeightKind]] = {
    GGMLQuantizationType.Q4_0: WeightKind.Q4_0,
    GGMLQuantizationType.Q4_1: WeightKind.Q4_1,
    GGMLQuantizationType.Q8_0: WeightKind.Q8_0,
}
_NAME = re.compile(r"^(?:model\.layers\.(?P<layer>\d+)\.)?(?P<module>.+)\.(?P<kind>weight|bias)$")
_ROPE_FREQUENCIES: Final = "rope_freqs.weight"


class GgufCheckpoint:
    """Weights, tokenizer and shape of one GGUF model (F32, F16, BF16, and whatever can be dequantized)."""

    def __init__(self, path: Path) -> None:
        self._file = open_gguf(path)
        self._config = config_from_gguf(self._file, _rope_divisors(self._file))
        self._shapes = weight_shapes(self._config)
        check_weights(path, self._shapes, self._found())

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""
        return self._config

    def files(self) -> Sequence[Path]:
        """The file, or all parts of a split set."""
        return self._file.paths

    def names(self) -> Sequence[str]:
        """Hugging Face's names of the weights."""
        return list(self._shapes)

    def tensor(self, name: str) -> torch.Tensor:
        """The weight in Hugging Face's layout; float32 when it was quantized, else as stored."""
        if name not in self._shapes:
            raise ModelError(f"{self._file.path}: this model has no weight {name!r}")
        entry = self._file.tensors[_gguf_name(name)]
        rows = _row_bytes(entry)
        heads = self._interleaved_heads(name)
        if heads:
            rows = _split_halves(rows, heads)
        try:
            return _values(rows, entry).reshape(entry.shape)
        except ModelError as error:
            raise ModelError(f"{self._file.path}: {entry.name}: {error}") from error

    def blocks(self, name: str) -> WeightRows | None:
        """The weight's own blocks [out, bytes] in Hugging Face's order; None: a kind that no kernel reads."""
        entry = self._file.tensors[_gguf_name(name)]
        kind = _KERNEL_KINDS.get(entry.type)
        if kind is None or len(entry.shape) != 2:
            return None
        rows = _row_bytes(entry)
        heads = self._interleaved_heads(name)
        return gguf_rows(_split_halves(rows, heads) if heads else rows, kind)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the file's metadata describes."""
        return tokenizer_from_gguf(self._file)

    def _found(self) -> dict[str, Shape]:
        stored = ((name, self._file.tensors.get(_gguf_name(name))) for name in self._shapes)
        return {name: entry.shape for name, entry in stored if entry is not None}

    def _interleaved_heads(self, name: str) -> int:
        """Heads whose rows llama.cpp reordered for its pairwise RoPE: q and k of llama models; else 0."""
        if self._config.architecture is not Architecture.LLAMA:
            return 0
        if ".q_proj." in name:
            return self._config.query_head_count
        return self._config.kv_head_count if ".k_proj." in name else 0


def _gguf_name(name: str) -> str:
    """``model.layers.3.self_attn.q_proj.weight`` to ``blk.3.attn_q.weight``."""
    match = _NAME.match(name)
    assert match is not None, name
    if match["layer"] is None:
        return f"{_GLOBAL_NAMES[match['module']]}.{match['kind']}"
    return f"blk.{match['layer']}.{_LAYER_NAMES[match['module']]}.{match['kind']}"


def _row_bytes(entry: GgufTensor) -> torch.Tensor:
    """The mapped bytes, [outputs, bytes of each] (uint8)."""
    if len(entry.shape) == 1 and entry.type not in PLAIN_DTYPES:
        raise ModelError(
            f"{entry.name}: a vector of type {entry.type.name} is not supported; requantize the model"
        )
    raw = torch.frombuffer(entry.buffer, dtype=torch.uint8, count=entry.byte_count, offset=entry.offset)
    return raw.view(entry.shape[0], -1)


def _split_halves(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Undo llama.cpp's permutation: in each head, rows 0, 1, 2, 3, … become 0, 2, …, then 1, 3, …."""
    # In NumPy, which copies on this thread; see dequantize.py for why.
    pairs = rows.numpy().reshape(heads, -1, 2, rows.shape[1])
    return torch.as_tensor(pairs.swapaxes(1, 2).reshape(rows.shape))


def _values(rows: torch.Tensor, entry: GgufTensor) -> torch.Tensor:
    dtype = PLAIN_DTYPES.get(entry.type)
    return dequantize(rows, entry.type) if dtype is None else rows.view(dtype)


def _rope_divisors(file: GgufFile) -> tuple[float, ...]:
    """llama.cpp stores the Llama 3 RoPE stretch as a tensor, not as metadata."""
    entry = file.tensors.get(_ROPE_FREQUENCIES)
    if entry is None:
        return ()
    values = tuple(float(value) for value in _values(_row_bytes(entry), entry).flatten())
    if not all(value > 0 for value in values):
        raise ModelError(f"{file.path}: {_ROPE_FREQUENCIES} holds values that are not above zero")
    return values
