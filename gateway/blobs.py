"""Where the bytes of files lie, as the gateway sees it; ``services/`` brings the place (a folder, S3)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol


class BlobWriter(Protocol):
    """One file that is being written. What fails in it raises OSError."""

    async def write(self, piece: bytes) -> None:
        """Append."""
        ...

    async def close(self) -> None:
        """All of it is in place, and outlives a crash of this machine's processes."""
        ...

    async def abandon(self) -> None:
        """Leave nothing behind."""
        ...


class Blobs(Protocol):
    """Files by their path below a root."""

    async def create(self, path: str) -> BlobWriter:
        """A new file. Raises OSError."""
        ...

    def read(self, path: str) -> AsyncIterator[bytes]:
        """A file, piece by piece. Raises OSError."""
        ...

    async def remove(self, path: str) -> None:
        """Remove a file, if it is there. Raises OSError."""
        ...
