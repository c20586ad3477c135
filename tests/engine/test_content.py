"""A digest of contents: read once, and again whenever a file may have changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.engine import content
from headway.engine.content import MEMORY_FILE, content_digest


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "a.bin", tmp_path / "b.bin"]
    for path in made:
        path.write_bytes(path.name.encode() * 1000)
    return made


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    folder = tmp_path / "memory"
    folder.mkdir()
    return folder


def test_files_are_read_once(files: list[Path], memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = content_digest(files, memory, threads=2)

    def refuse(path: Path) -> str:
        raise AssertionError(f"{path} was read again")

    monkeypatch.setattr(content, "_digest", refuse)
    assert content_digest(files, memory) == first
    files[1].write_bytes(files[1].read_bytes())
    with pytest.raises(AssertionError, match="read again"):
        content_digest(files, memory)


def test_it_follows_the_contents_and_nothing_else(files: list[Path], memory: Path, tmp_path: Path) -> None:
    first = content_digest(files, memory)
    copies = [path.rename(tmp_path / f"moved-{path.name}") for path in files]
    assert content_digest(copies, memory) == first
    assert content_digest(copies[::-1], memory) != first
    changed = bytearray(copies[0].read_bytes())
    changed[-1] ^= 1
    copies[0].write_bytes(changed)  # of the same size
    assert content_digest(copies, memory) != first


@pytest.mark.parametrize("damage", [b"", b"[1]", b"{", b'{"a": 1'])
def test_a_damaged_memory_is_no_memory(files: list[Path], memory: Path, damage: bytes) -> None:
    first = content_digest(files, memory)
    (memory / MEMORY_FILE).write_bytes(damage)
    assert content_digest(files, memory) == first


def test_without_a_place_to_remember_it_is_found_all_the_same(files: list[Path], memory: Path) -> None:
    assert content_digest(files, memory / "absent") == content_digest(files, memory)
