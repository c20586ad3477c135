"""What a model's files hold, as one digest; they are read again only when they have changed.

Reading takes half a second per gigabyte, and the packed copy of the weights makes it needless. So the digest
is remembered beside the file's identity: path, device, inode, size, and the times of its last change.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, Protocol, cast, runtime_checkable

from headway.engine.whole_file import write_whole

MEMORY_FILE: Final = "contents.json"
REMEMBERED_FILES: Final = 1000


@runtime_checkable
class StoredCheckpoint(Protocol):
    """A checkpoint that is made of files."""

    def files(self) -> Sequence[Path]:
        """All that the weights follow from."""
        ...


def content_digest(files: Sequence[Path], memory_folder: Path, threads: int = 1) -> str:
    """SHA-256 of the files' contents, in hexadecimal. OSError: one cannot be read."""
    memory_file = memory_folder / MEMORY_FILE
    known = _remembered(memory_file)
    identities = [_identity(path) for path in files]
    unknown = {name: path for name, path in zip(identities, files, strict=True) if name not in known}
    if unknown:
        with ThreadPoolExecutor(threads) as pool:
            known |= dict(zip(unknown, pool.map(_digest, unknown.values()), strict=True))
        _remember(memory_file, dict(list(known.items())[-REMEMBERED_FILES:]))
    return hashlib.sha256("\n".join(known[name] for name in identities).encode()).hexdigest()


def _identity(path: Path) -> str:
    path = path.resolve()
    found = path.stat()
    return f"{path}:{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}:{found.st_ctime_ns}"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remembered(memory_file: Path) -> dict[str, str]:
    """Empty when there is nothing, or nothing that can be read: then the files are."""
    try:
        content = json.loads(memory_file.read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    return {str(name): str(digest) for name, digest in cast(dict[object, object], content).items()}


def _remember(memory_file: Path, known: dict[str, str]) -> None:
    """Whole or not at all: in a folder that cannot be written, files are read at every start.

    Of two processes the later one's file stays, and what the other one read is read once more.
    """
    with contextlib.suppress(OSError):
        write_whole(memory_file, lambda file: file.write(json.dumps(known, indent=0).encode()))
