"""A multipart form that is read as it arrives: its file goes straight to where it is kept.

Frameworks read such a form whole, into memory or a temporary file, before anybody may look at it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from headway.gateway.errors import ApiError, ClientGoneError, invalid_request

if TYPE_CHECKING:  # a type that the library has only for type checkers
    from python_multipart.multipart import MultipartCallbacks

MOST_FIELDS: Final = 20
MOST_FIELD_BYTES: Final = 4096


class Form:
    """The fields of a form, and its one file. ``keep`` gets the file's bytes as they come."""

    def __init__(self, content_type: str, keep: Callable[[bytes], Awaitable[None]]) -> None:
        """Raises ApiError 400, 415."""
        kind, options = parse_options_header(content_type)
        if kind != b"multipart/form-data":
            raise ApiError(
                415,
                "send the file as multipart/form-data (curl: -F purpose=batch -F file=@requests.jsonl)",
                code="unsupported_media_type",
            )
        if not options.get(b"boundary"):
            raise _malformed("the Content-Type names no boundary; HTTP clients write it by themselves")
        self.fields: dict[str, str] = {}
        self.file_name: str | None = None
        """Set once the file has begun."""
        self._keep = keep
        self._pieces: list[bytes] = []
        self._disposition = b""
        self._header = b""
        self._name = ""
        self._is_file = False
        self._value = bytearray()
        self._is_whole = False
        try:
            self._parser = MultipartParser(options.get(b"boundary", b""), self._callbacks())
        except FormParserError as error:
            raise _malformed(error) from None

    async def read(self, request: Request) -> None:
        """Read all of a request's body. Raises ApiError 400, ClientGoneError, and what ``keep`` raises."""
        try:
            async for piece in request.stream():
                self._parser.write(piece)
                for part in self._pieces:
                    await self._keep(part)
                self._pieces.clear()
            self._parser.finalize()
        except ClientDisconnect:
            raise ClientGoneError from None
        except FormParserError as error:
            raise _malformed(error) from None
        if not self._is_whole:
            raise invalid_request("the form ends before its last boundary", code="invalid_form")

    # -- what the parser finds ------------------------------------------------------------------------

    def _callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._header_name,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_end,
            "on_part_data": self._part,
            "on_part_end": self._end,
            "on_end": self._whole,
        }

    def _begin(self) -> None:
        self._disposition = self._header = b""
        self._name, self._is_file = "", False
        self._value.clear()

    def _header_name(self, piece: bytes, start: int, end: int) -> None:
        self._header += piece[start:end]

    def _header_value(self, piece: bytes, start: int, end: int) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition += piece[start:end]

    def _header_end(self) -> None:
        self._header = b""

    def _headers_end(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode(errors="replace")
        self._is_file = b"filename" in options
        if not self._is_file:
            return
        if self._name != "file" or self.file_name is not None:
            raise invalid_request("send one file, in the field 'file'", param="file", code="invalid_form")
        self.file_name = options[b"filename"].decode(errors="replace")

    def _part(self, piece: bytes, start: int, end: int) -> None:
        if self._is_file:
            self._pieces.append(piece[start:end])
            return
        self._value += piece[start:end]
        if len(self._value) > MOST_FIELD_BYTES:
            raise invalid_request(f"the field is over {MOST_FIELD_BYTES} bytes", param=self._name[:100])

    def _end(self) -> None:
        if self._is_file:
            return
        if len(self.fields) >= MOST_FIELDS:
            raise invalid_request("the form has too many fields", code="invalid_form")
        self.fields[self._name] = self._value.decode(errors="replace")

    def _whole(self) -> None:
        self._is_whole = True


def _malformed(error: Exception | str) -> ApiError:
    return invalid_request(f"the form cannot be read: {error}", code="invalid_form")
