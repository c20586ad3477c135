"""Where files lie: a folder, S3, or whatever else fsspec reaches, below one root.

Every file is written once, under a path that nobody else uses, and made known only after it is complete. So
half a file is never read, on any kind of storage, and nothing is ever overwritten.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from io import BufferedReader, RawIOBase, UnsupportedOperation
from pathlib import Path
from typing import Any, Final, Protocol, cast

from headway.services.errors import StartError, UsageError

PIECE_BYTES: Final = 1 << 20
BLOCK_BYTES: Final = 8 << 20
"""What is fetched from an object store or sent to it at once: it takes no parts under 5 MiB."""


class OpenFile(Protocol):
    """A file that is read."""

    def read(self, size: int = -1, /) -> bytes:
        """Up to so many bytes; none at the end."""
        ...

    def readline(self, size: int = -1, /) -> bytes:
        """A line with its end, or its first ``size`` bytes."""
        ...

    def seek(self, offset: int, /) -> int:
        """Go on from there."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class NewFile:
    """A file that is being written."""

    def __init__(self, opened: Any, translated: Callable[[Callable[[], Any]], Any]) -> None:
        self._opened = opened
        self._translated = translated

    def write(self, piece: bytes) -> None:
        """Append."""
        self._translated(lambda: self._opened.write(piece))

    def close(self) -> None:
        """All of it is in place: where it is on a disk of this machine, on the disk."""
        if self._opened.closed:
            return
        try:
            descriptor: int | None = self._opened.fileno()
        except (AttributeError, UnsupportedOperation):
            descriptor = None  # only files of this machine have one
        if descriptor is not None:
            self._opened.flush()
            os.fsync(descriptor)
        self._translated(self._opened.close)


class _Readable(RawIOBase):
    """An object store's file as Python's own buffer reads it."""

    def __init__(self, opened: Any, translated: Callable[[Callable[[], Any]], Any]) -> None:
        self._opened = opened
        self._translated = translated

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, into: Any, /) -> int:
        piece: bytes = self._translated(lambda: self._opened.read(len(into)))
        into[: len(piece)] = piece
        return len(piece)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        return int(self._opened.seek(offset, whence))

    def tell(self) -> int:
        return int(self._opened.tell())

    def close(self) -> None:
        self._opened.close()
        super().close()


class Storage:
    """Files by their path below a root. What fails raises OSError."""

    def __init__(self, url: str) -> None:
        """``url``: a folder, or what fsspec reads, such as ``s3://bucket/prefix``. Raises UsageError."""
        import fsspec  # type: ignore[import-untyped]  # it has no types; all of it stays in this class

        library: Any = fsspec
        if "://" not in url:
            url = Path(url).expanduser().absolute().as_uri()
        try:
            files, root = library.core.url_to_fs(url, **_options(url))
        except (ImportError, ValueError) as error:
            raise UsageError(
                f"--files {url}: {error}",
                hint="a folder, or s3://BUCKET/PREFIX with pip install 'headway[s3]'",
            ) from None
        self.url = url
        self._files: Any = files
        self._object_file: type = library.spec.AbstractBufferedFile
        self._root = str(root).rstrip("/")

    def check(self) -> None:
        """Raise StartError if nothing can be written there."""
        path = f"probe-{os.getpid()}-{os.urandom(4).hex()}"
        try:
            self.write(path, [b"headway"])
            self.remove(path)
        except OSError as error:
            hint = "correct --files / HEADWAY_FILES"
            if self.url.startswith("s3:"):
                hint += ", AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY or AWS_ENDPOINT_URL; make the bucket"
            raise StartError(f"files cannot be kept in {self.url}: {error}", hint=hint) from None

    def open_new(self, path: str) -> NewFile:
        """A new file, to be written."""
        return NewFile(self._opened(path, "wb"), self._translated)

    def open(self, path: str, offset: int = 0) -> OpenFile:
        """A file, to be read from a place on."""
        opened = self._buffered(self._opened(path, "rb"))
        if offset:
            opened.seek(offset)
        return opened

    def write(self, path: str, pieces: Iterator[bytes] | list[bytes]) -> int:
        """A whole new file, durable; returns its bytes."""
        size = 0
        opened = self.open_new(path)
        try:
            for piece in pieces:
                opened.write(piece)
                size += len(piece)
            opened.close()
        except BaseException:
            with suppress(OSError):
                opened.close()
            with suppress(OSError):
                self.remove(path)
            raise
        return size

    def publish(self, path: str, pieces: Iterator[bytes] | list[bytes]) -> None:
        """A whole new file under a name that is looked for, so that no half of it is ever found there."""
        half = f"{path}.{os.urandom(4).hex()}"
        self.write(half, pieces)
        self._translated(lambda: self._files.mv(self._at(half), self._at(path)))

    def pieces(self, path: str) -> Iterator[bytes]:
        """A file, piece by piece."""
        opened = self.open(path)
        try:
            while piece := opened.read(PIECE_BYTES):
                yield piece
        finally:
            opened.close()

    def remove(self, path: str) -> None:
        """Remove a file, if it is there."""
        with suppress(FileNotFoundError):
            self._translated(lambda: self._files.rm_file(self._at(path)))

    def remove_all(self, folder: str) -> None:
        """Remove a folder and everything below it, if it is there."""
        with suppress(FileNotFoundError):
            self._translated(lambda: self._files.rm(self._at(folder), recursive=True))

    def names(self, folder: str) -> list[tuple[str, float]]:
        """The names in a folder, each with its age's origin (seconds since the epoch; 0: not told)."""
        try:
            found = self._translated(lambda: self._files.ls(self._at(folder), detail=True, refresh=True))
        except FileNotFoundError:
            return []
        return [(str(one["name"]).rstrip("/").rpartition("/")[2], _written_at(one)) for one in found]

    def _opened(self, path: str, mode: str) -> Any:
        return self._translated(lambda: self._files.open(self._at(path), mode, block_size=BLOCK_BYTES))

    def _buffered(self, opened: Any) -> OpenFile:
        """A file whose lines can be read up to a bound: those of object stores have them only whole."""
        if isinstance(opened, self._object_file):
            opened = BufferedReader(_Readable(opened, self._translated), PIECE_BYTES)
        return cast("OpenFile", opened)

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _translated(self, act: Any) -> Any:
        """What it returns; whatever else a kind of storage raises becomes an OSError."""
        try:
            return act()
        except OSError:
            raise
        except Exception as error:
            raise OSError(f"{type(error).__name__}: {error}") from error


def _options(url: str) -> dict[str, object]:
    """What fsspec is told beside the URL; S3's keys and endpoint come from its own variables (AWS_…).

    No listings are remembered: a file that another process has written since would be told to be missing.
    """
    return {"auto_mkdir": True} if url.startswith(("file:", "local:")) else {"use_listings_cache": False}


def _written_at(entry: dict[str, Any]) -> float:
    when: Any = entry.get("mtime") or entry.get("LastModified") or entry.get("created") or 0.0
    return float(when.timestamp() if hasattr(when, "timestamp") else when)


class GatewayBlobs:
    """A storage as the gateway uses it: its event loop never waits for a disk."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def create(self, path: str) -> _GatewayWriter:
        """See ``Blobs.create``."""
        return _GatewayWriter(self._storage, path, await asyncio.to_thread(self._storage.open_new, path))

    async def read(self, path: str) -> AsyncIterator[bytes]:
        """See ``Blobs.read``."""
        opened = await asyncio.to_thread(self._storage.open, path)
        try:
            while piece := await asyncio.to_thread(opened.read, PIECE_BYTES):
                yield piece
        finally:
            await asyncio.shield(asyncio.to_thread(opened.close))

    async def remove(self, path: str) -> None:
        """See ``Blobs.remove``."""
        await asyncio.to_thread(self._storage.remove, path)


class _GatewayWriter:
    """See ``BlobWriter``."""

    def __init__(self, storage: Storage, path: str, opened: NewFile) -> None:
        self._storage = storage
        self._path = path
        self._opened = opened

    async def write(self, piece: bytes) -> None:
        """See ``BlobWriter.write``."""
        await asyncio.to_thread(self._opened.write, piece)

    async def close(self) -> None:
        """See ``BlobWriter.close``."""
        await asyncio.to_thread(self._opened.close)

    async def abandon(self) -> None:
        """See ``BlobWriter.abandon``."""
        with suppress(OSError):
            await asyncio.to_thread(self._opened.close)
        await asyncio.to_thread(self._storage.remove, self._path)
