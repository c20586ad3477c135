"""Records of files and batches as the server gives them back."""

from __future__ import annotations

from typing import cast

from headway.queueing.batch import Batch, decode_batch
from headway.queueing.errors import UnreadableRecordError
from headway.queueing.node import Reply
from headway.queueing.stored_file import StoredFile, decode_file


def batch_of(reply: Reply) -> Batch | None:
    """The batch of a whole hash; None: there is none. Raises UnreadableRecordError."""
    flat = cast("list[bytes]", reply)
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    return decode_batch(fields) if b"created" in fields else None


def readable_batch(reply: Reply) -> Batch | None:
    """None too for a record that cannot be read: one such must not hide all others."""
    try:
        return batch_of(reply)
    except UnreadableRecordError:
        return None


def readable_file(reply: Reply) -> StoredFile | None:
    """The same of a file."""
    try:
        return decode_file(reply) if isinstance(reply, bytes) else None
    except UnreadableRecordError:
        return None


def texts_of(reply: Reply) -> list[str]:
    """A list of names."""
    return [text.decode() for text in cast("list[bytes]", reply)]
