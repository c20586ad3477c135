"""The GGUF container: what is written is read back, and damage is told, never a crash."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from gguf.constants import GGUFEndian
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.engine.errors import ModelError
from headway.engine.gguf_file import open_gguf

if TYPE_CHECKING:
    from tests.engine.model_files.conftest import GgufDraft


@pytest.fixture
def small(draft: GgufDraft) -> GgufDraft:
    draft.fields = {
        "a.flag": True,
        "a.count": 7,
        "a.factor": 1.5,
        "a.text": "Grüße 🎉",
        "a.texts": ["", "é", "x" * 100],
        "a.numbers": [1, -2, 3],
        "a.factors": [0.5, -0.25],
    }
    draft.tensors = {}
    draft.put("m", np.arange(6, dtype=np.float32).reshape(2, 3))
    draft.put("v", np.arange(5, dtype=np.float16))
    return draft


def test_metadata_of_every_kind_is_read_back(small: GgufDraft, tmp_path: Path) -> None:
    file = open_gguf(small.write(tmp_path / "small.gguf"))
    assert {key: file.metadata[key] for key in small.fields} == {
        key: tuple(value) if isinstance(value, list) else value for key, value in small.fields.items()
    }


def test_tensors_are_found_where_they_lie(small: GgufDraft, tmp_path: Path) -> None:
    file = open_gguf(small.write(tmp_path / "small.gguf"))
    entry = file.tensors["m"]
    assert entry.shape == (2, 3)
    stored = entry.buffer[entry.offset : entry.offset + entry.byte_count]
    assert struct.unpack("<6f", stored) == (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
    assert file.tensors["v"].byte_count == 10


def test_a_split_set_is_read_as_one_file_from_any_part(draft: GgufDraft, tmp_path: Path) -> None:
    whole = open_gguf(draft.write(tmp_path / "whole.gguf"))
    draft.write(tmp_path / "split.gguf", split=8)
    parts = sorted(tmp_path.glob("split-*.gguf"))
    assert len(parts) == 3
    for part in parts:
        file = open_gguf(part)
        assert file.metadata["llama.block_count"] == 2
        assert {name: entry.shape for name, entry in file.tensors.items()} == {
            name: entry.shape for name, entry in whole.tensors.items()
        }


def test_a_missing_part_of_a_split_set_is_named(draft: GgufDraft, tmp_path: Path) -> None:
    draft.write(tmp_path / "split.gguf", split=8)
    first, second, _ = sorted(tmp_path.glob("split-*.gguf"))
    second.unlink()
    with pytest.raises(ModelError, match=second.name):
        open_gguf(first)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"PK\x03\x04 not a model", "not a GGUF file"),
        (b"GG", "not a GGUF file"),
        (b"GGUF", "cut off"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "version 1"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**60), "length"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q1sI8x", 1, b"k", 99), "value type 99"),
    ],
)
def test_what_is_no_gguf_is_refused_with_the_reason(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=reason) as caught:
        open_gguf(path)
    assert "bad.gguf" in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"absent\.gguf.*check the path"):
        open_gguf(tmp_path / "absent.gguf")


def test_big_endian_files_are_refused(small: GgufDraft, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="big-endian"):
        open_gguf(small.write(tmp_path / "big.gguf", endian=GGUFEndian.BIG))


def test_an_unknown_tensor_type_says_what_to_do(small: GgufDraft, tmp_path: Path) -> None:
    path = small.write(tmp_path / "small.gguf")
    content = path.read_bytes()
    entry = struct.pack("<Q1sI2QI", 1, b"m", 2, 3, 2, 0)  # name, dimensions, sizes, type F32
    assert entry in content
    path.write_bytes(content.replace(entry, entry[:-4] + struct.pack("<I", 250)))
    with pytest.raises(ModelError, match=r"type 250.*requantize"):
        open_gguf(path)


def test_a_file_cut_anywhere_is_refused(small: GgufDraft, tmp_path: Path) -> None:
    path = small.write(tmp_path / "small.gguf")
    content = path.read_bytes()
    needed = max(entry.offset + entry.byte_count for entry in open_gguf(path).tensors.values())
    for length in range(needed):
        path.write_bytes(content[:length])
        with pytest.raises(ModelError):
            open_gguf(path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bytes_are_read_or_refused_but_never_crash(
    data: st.DataObject, small: GgufDraft, tmp_path: Path
) -> None:
    path = tmp_path / "small.gguf"
    if not path.exists():
        small.write(path)
    content = bytearray(path.read_bytes())
    for position in data.draw(st.lists(st.integers(4, len(content) - 1), min_size=1, max_size=4)):
        content[position] = data.draw(st.integers(0, 255))
    flipped = tmp_path / "flipped.gguf"
    flipped.write_bytes(content)
    try:
        file = open_gguf(flipped)
    except ModelError:
        return
    for entry in file.tensors.values():
        assert entry.offset + entry.byte_count <= len(content)
