"""A Hugging Face folder as a Checkpoint: ``config.json``, safetensors (also sharded), ``tokenizer.json``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple, Protocol, cast

import torch
from safetensors import SafetensorError, safe_open

from headway.engine.errors import ModelError
from headway.engine.hf_config import config_from_hf
from headway.engine.hf_tokenizer import TOKENIZER_FILE, tokenizer_from_folder
from headway.engine.interfaces import Tokenizer
from headway.engine.json_file import read_json_object
from headway.engine.model_config import ModelConfig
from headway.engine.weight_shapes import check_weights, weight_shapes

CONFIG_FILE: Final = "config.json"
_INDEX_FILE: Final = "model.safetensors.index.json"
_DTYPES: Final = frozenset({"F64", "F32", "F16", "BF16"})


class _Slice(Protocol):
    """What the header says of one weight (the library's types are bare)."""

    def get_shape(self) -> list[int]: ...

    def get_dtype(self) -> str: ...


class _File(Protocol):
    """An open safetensors file."""

    def keys(self) -> list[str]: ...

    def get_slice(self, name: str) -> _Slice: ...

    def get_tensor(self, name: str) -> torch.Tensor: ...


class _Stored(NamedTuple):
    """One weight in a file, before it is read."""

    file: _File
    path: Path
    shape: tuple[int, ...]
    dtype: str


class SafetensorsCheckpoint:
    """Weights, tokenizer and shape of one model folder; weights are mapped, in the dtype of the file."""

    def __init__(self, folder: Path) -> None:
        config = config_from_hf(
            read_json_object(folder / CONFIG_FILE, required=True),
            read_json_object(folder / "generation_config.json", required=False),
            source=str(folder / CONFIG_FILE),
        )
        self._folder = folder
        self._tokenizer: Tokenizer | None = None
        if (folder / TOKENIZER_FILE).exists():
            # The tokenizer may name one more end token than the configuration; both tell the same set.
            self._tokenizer = _tokenizer(folder, config)
            config = replace(config, eos_token_ids=self._tokenizer.eos_token_ids)
        self._config = config
        self._stored = _stored_weights(_weight_files(folder))
        self._names = list(weight_shapes(config))
        found = {name: stored.shape for name, stored in self._stored.items()}
        check_weights(folder, weight_shapes(config), found)

    @property
    def config(self) -> ModelConfig:
        """The model's shape."""
        return self._config

    def files(self) -> Sequence[Path]:
        """The configuration and the weights."""
        return [self._folder / CONFIG_FILE, *sorted({stored.path for stored in self._stored.values()})]

    def names(self) -> Sequence[str]:
        """Names of the weights that the model uses."""
        return self._names

    def tensor(self, name: str) -> torch.Tensor:
        """The weight as stored, mapped from its file."""
        stored = self._stored.get(name)
        if stored is None:
            raise ModelError(f"{self._folder}: this model has no weight {name!r}")
        if stored.dtype not in _DTYPES:
            raise ModelError(
                f"{stored.path}: {name} is stored as {stored.dtype}, which is not supported; "
                "use the model in bfloat16, float16 or float32"
            )
        return stored.file.get_tensor(name)

    def tokenizer(self) -> Tokenizer:
        """The folder's tokenizer."""
        if self._tokenizer is None:
            self._tokenizer = _tokenizer(self._folder, self._config)
        return self._tokenizer


def _tokenizer(folder: Path, config: ModelConfig) -> Tokenizer:
    return tokenizer_from_folder(folder, config.eos_token_ids, vocab_size=config.vocab_size)


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files that make up the model; ModelError when one is missing."""
    index = read_json_object(folder / _INDEX_FILE, required=False)
    if index:
        weight_map = index.get("weight_map")
        if not isinstance(weight_map, dict):
            raise ModelError(f"{folder / _INDEX_FILE}: weight_map is missing; fetch the file again")
        names = {str(name) for name in cast(dict[str, object], weight_map).values()}
        files = [folder / name for name in sorted(names)]
    else:
        files = _unindexed_files(folder)
    for file in files:
        if not file.is_file():
            raise ModelError(f"{file}: this part of the weights is missing; fetch the whole model folder")
    return files


def _unindexed_files(folder: Path) -> list[Path]:
    usual = folder / "model.safetensors"
    if usual.exists():
        return [usual]
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ModelError(
            f"{folder}: no .safetensors weights; fetch them (.bin and .pth are not read: they can run code)"
        )
    if len(files) > 1:
        raise ModelError(f"{folder}: several weight files without {_INDEX_FILE}; fetch that index as well")
    return files


def _stored_weights(paths: Iterable[Path]) -> dict[str, _Stored]:
    """Every weight of the files by name."""
    stored: dict[str, _Stored] = {}
    for path in paths:
        try:
            file = cast(_File, safe_open(path, framework="pt"))
            for name in file.keys():  # noqa: SIM118 - safe_open is no mapping
                part = file.get_slice(name)
                stored[name] = _Stored(file, path, tuple(part.get_shape()), part.get_dtype())
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path}: damaged or cut off ({error}); fetch the file again") from error
    return stored
