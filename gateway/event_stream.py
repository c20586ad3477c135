"""Answering with events: the writer of one stream, and the rule that it never just falls silent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, Protocol

import structlog
from starlette.types import Receive, Send

from headway.gateway.departure import Departure, run_until_departure
from headway.gateway.errors import ApiError, ClientGoneError, from_queueing, internal_error, shutting_down
from headway.gateway.gateway import Gateway
from headway.gateway.sse import PING, STREAM_HEADERS, error_frame
from headway.queueing.errors import QueueingError

_log = structlog.stdlib.get_logger("headway.gateway")

FAREWELL_SECONDS: Final = 1.0
"""A last frame to a client that reads nothing is given up after this long."""


class FrameSource(Protocol):
    """Where a stream's frames come from."""

    async def next_frames(self, wait_seconds: float) -> bytes | None:
        """All frames that are ready, ``b""`` if none is by then, None after the last; raises ApiError."""
        ...


class EventStreamWriter:
    """Writes one stream to an ASGI channel; ``send`` waits for a slow client, and so does its writer."""

    def __init__(self, gateway: Gateway, send: Send, *, error_event: str | None = None) -> None:
        self.is_started = False
        self.is_finished = False
        self.failure: ApiError | None = None
        self._gateway = gateway
        self._send = send
        self._error_event = error_event
        self._written_at = 0.0

    async def pump(self, source: FrameSource, headers: Callable[[], Mapping[str, str]]) -> None:
        """Write a source to its end; the status waits for the first frames, so that a refusal is a 4xx."""
        settings = self._gateway.settings
        frames = await source.next_frames(settings.first_event_seconds)
        await self._start(headers())
        while frames is not None:
            if frames or self._gateway.clock() - self._written_at >= settings.ping_seconds:
                await self._write(frames or PING)
            frames = await source.next_frames(min(settings.read_wait_seconds, settings.ping_seconds))
        await self._finish(b"")

    async def fail(self, error: ApiError) -> None:
        """Say why the stream ends early, if it has begun and the client still reads."""
        self.failure = error
        if self.is_started and not self.is_finished:
            try:
                async with asyncio.timeout(FAREWELL_SECONDS):
                    await self._finish(error_frame(error, event=self._error_event))
            except (TimeoutError, OSError):
                _log.info("stream could not be told why it ends", code=error.code)

    async def _start(self, headers: Mapping[str, str]) -> None:
        encoded = [
            (name.encode(), value.encode()) for name, value in (STREAM_HEADERS | dict(headers)).items()
        ]
        self.is_started = True
        # The zero makes the first silence carry a ping at once: proxies wait for a first byte too.
        self._written_at = self._gateway.clock() - self._gateway.settings.ping_seconds
        await self._send({"type": "http.response.start", "status": 200, "headers": encoded})

    async def _write(self, frames: bytes) -> None:
        began = self._gateway.clock()
        await self._send({"type": "http.response.body", "body": frames, "more_body": True})
        self._written_at = self._gateway.clock()
        self._gateway.metrics.lag_seconds.observe(self._written_at - began)

    async def _finish(self, frames: bytes) -> None:
        await self._send({"type": "http.response.body", "body": frames, "more_body": False})
        self.is_finished = True


async def serve(
    gateway: Gateway,
    work: Coroutine[Any, Any, None],
    writer: EventStreamWriter,
    receive: Receive,
    *,
    abandon: Callable[[str], Awaitable[None]],
    job_ids: Callable[[], tuple[str, ...]],
) -> None:
    """Run the work that answers one request; whatever stops it early, its jobs and its client are told.

    Before the first byte an error is raised, to become a status; after it, it becomes an error frame. When
    the gateway stops, the jobs live on. Raises ClientGoneError, and CancelledError after telling everyone.
    """
    try:
        departure = await run_until_departure(work, receive, gateway.stopping)
        if departure is Departure.CLIENT:
            raise ClientGoneError  # noqa: TRY301 # told apart below, with the other ends
        if departure is Departure.GATEWAY:
            raise shutting_down(job_ids())  # noqa: TRY301 # the same
    except (ClientGoneError, OSError):
        # OSError: some servers tell a disconnect by a failed send.
        await abandon("the client disconnected")
        raise ClientGoneError from None
    except asyncio.CancelledError:
        if not gateway.stopping.has_ended:
            await abandon("the request was cancelled")
        await writer.fail(shutting_down(job_ids()))
        raise
    except Exception as error:
        if not gateway.stopping.has_ended:
            await abandon("the request failed")
        if not writer.is_started:
            raise
        await writer.fail(_told(error))


async def leave_running(reason: str) -> None:
    """What abandons the jobs of a reader that only looks on: nothing."""
    del reason


def _told(error: Exception) -> ApiError:
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueingError):
        return from_queueing(error)
    _log.error("stream failed", exc_info=error)
    return internal_error()
