"""One upload: from the request's body to the place where files are kept, in pieces of what has arrived."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Final

import structlog
from starlette.requests import Request

from headway.gateway.blobs import Blobs, BlobWriter
from headway.gateway.errors import ApiError, invalid_request, unavailable
from headway.gateway.form import Form

_log = structlog.stdlib.get_logger("headway.gateway")

FORM_BYTES: Final = 64 << 10
"""Of a form beside its file."""
PIECE_BYTES: Final = 1 << 20


class Upload:
    """Writes the form's file to ``path``; nothing stays there unless ``receive`` returns."""

    def __init__(self, blobs: Blobs, path: str, most_bytes: int, *, digests: bool = False) -> None:
        """``digests``: whether ``digest`` will be asked for."""
        self._blobs = blobs
        self._path = path
        self._most_bytes = most_bytes
        self._writer: BlobWriter | None = None
        self._buffer = bytearray()
        self.size_bytes = 0
        self._digest = sha256() if digests else None

    async def receive(self, request: Request, timeout_seconds: float) -> Form:
        """The form with its file in place. Raises ApiError 400, 408, 413, 415, 503, ClientGoneError."""
        self._check_declared(request)
        form = Form(request.headers.get("content-type", ""), self._keep)
        try:
            async with asyncio.timeout(timeout_seconds):
                await form.read(request)
            await self._finish(form)
        except TimeoutError:
            await self.abandon()
            raise _too_slow(timeout_seconds) from None
        except OSError as error:
            await self.abandon()
            _log.error("file could not be stored", path=self._path, error=repr(error))
            raise storage_failed() from None
        except BaseException:
            await self.abandon()
            raise
        return form

    def digest(self, *beside: object) -> str:
        """What the file's bytes and what was said beside them make, to be told from any other upload."""
        assert self._digest is not None, "asked for at the start"
        return sha256(self._digest.digest() + repr(beside).encode(errors="surrogatepass")).hexdigest()

    async def abandon(self) -> None:
        """Remove what was written."""
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                await asyncio.shield(writer.abandon())
            except OSError as error:
                _log.warning("half a file stays behind", path=self._path, error=repr(error))

    async def _keep(self, piece: bytes) -> None:
        self.size_bytes += len(piece)
        if self.size_bytes > self._most_bytes:
            raise _too_large(self._most_bytes)
        if self._digest is not None:
            self._digest.update(piece)
        if self._writer is None:
            self._writer = await self._blobs.create(self._path)
        self._buffer += piece
        if len(self._buffer) >= PIECE_BYTES:
            await self._flush()

    async def _flush(self) -> BlobWriter:
        if self._writer is None:  # an empty file
            self._writer = await self._blobs.create(self._path)
        if self._buffer:
            await self._writer.write(bytes(self._buffer))
            self._buffer.clear()
        return self._writer

    async def _finish(self, form: Form) -> None:
        if form.file_name is None:
            raise invalid_request(
                "Missing required parameter: 'file'.", param="file", code="missing_required_parameter"
            )
        await (await self._flush()).close()

    def _check_declared(self, request: Request) -> None:
        declared = request.headers.get("content-length", "0")
        if declared.isdecimal() and int(declared[:18]) > self._most_bytes + FORM_BYTES:
            raise _too_large(self._most_bytes)


def storage_failed() -> ApiError:
    """A 503: the place where files lie cannot be read or written now."""
    return unavailable(
        "the files' storage cannot be used now; the gateway's log has the cause",
        reason="storage_unavailable",
        retry_after_seconds=5,
    )


def _too_large(limit_bytes: int) -> ApiError:
    return ApiError(
        413,
        f"a file may have {limit_bytes} bytes at most: split it",
        code="file_too_large",
        param="file",
        headers={"connection": "close"},
    )


def _too_slow(limit_seconds: float) -> ApiError:
    return ApiError(
        408,
        f"the file did not arrive within {limit_seconds:g} s",
        code="body_too_slow",
        headers={"connection": "close"},
    )
