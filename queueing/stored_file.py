"""What is known of one stored file; its bytes lie where ``services/`` put them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson

from headway.queueing.errors import UnreadableRecordError
from headway.queueing.record_fields import known_fields

FILE_ID_PATTERN: Final = r"^file-[A-Za-z0-9]{8,40}$"


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that was uploaded, or that a batch wrote. Times are the server's clock in milliseconds."""

    file_id: str
    tenant: str
    name: str
    purpose: str
    size_bytes: int
    created_ms: int
    expires_ms: int
    path: str
    """Below the storage's root."""

    def encode(self) -> bytes:
        """The record as JSON."""
        return orjson.dumps(asdict(self))


def decode_file(text: bytes) -> StoredFile:
    """A record that ``StoredFile.encode`` wrote; raises UnreadableRecordError for anything else."""
    try:
        fields: Any = orjson.loads(text)
        return StoredFile(**known_fields(StoredFile, fields))
    except (TypeError, ValueError) as error:
        raise UnreadableRecordError(f"no record of a file: {error}") from None
