"""A file of packed parts is whole, or told to be damaged: no wrong byte gets into a model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.engine.packed_file import ALIGNMENT, DamagedFileError, PackedFile, PackedWriter
from headway.engine.whole_file import BEGUN, write_whole

PARTS = {
    "bytes": torch.arange(1, 101, dtype=torch.uint8).view(10, 10),
    "floats": torch.linspace(0.1, 1, 37),
    "nothing": torch.empty(0, dtype=torch.uint8),
    "last": torch.ones(64, dtype=torch.uint8),
}


def written(path: Path) -> Path:
    with path.open("wb") as file:
        writer = PackedWriter(file)
        for name, values in PARTS.items():
            writer.add(name, values)
        writer.finish({"made of": "parts"})
    return path


def test_parts_come_back_aligned_and_with_the_facts(tmp_path: Path) -> None:
    file = PackedFile(written(tmp_path / "file"), threads=2)
    assert file.facts == {"made of": "parts"}
    assert file.byte_count == (tmp_path / "file").stat().st_size
    assert "floats" in file
    assert "other" not in file
    for name, values in PARTS.items():
        if len(values):
            found = file.tensor(name, values.dtype)
            assert torch.equal(found, values.flatten())
            assert found.data_ptr() % ALIGNMENT == 0


@given(place=st.floats(0, 1, exclude_max=True), bits=st.integers(1, 255))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_changed_byte_is_taken_for_a_part(tmp_path: Path, place: float, bits: int) -> None:
    path = written(tmp_path / "file")
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] ^= bits
    path.write_bytes(content)
    try:
        file = PackedFile(path)
    except DamagedFileError:
        return
    # It was a byte between two parts.
    for name, values in PARTS.items():
        if len(values):
            assert torch.equal(file.tensor(name, values.dtype), values.flatten())


@given(keep=st.floats(0, 1, exclude_max=True))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_file_that_was_cut_off_is_told(tmp_path: Path, keep: float) -> None:
    path = written(tmp_path / "file")
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(DamagedFileError):
        PackedFile(path)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(file: object) -> None:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        write_whole(path, fail)
    assert path.read_bytes() == b"old"
    write_whole(path, lambda file: file.write(b"new"))
    assert path.read_bytes() == b"new"
    assert not list(tmp_path.glob(f"{BEGUN}*"))
