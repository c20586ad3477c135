"""The outermost layer of each request: its id, its time, its log line, its metrics, the last error net."""

from __future__ import annotations

from typing import Final

import structlog
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headway.gateway.errors import ClientGoneError, internal_error
from headway.gateway.gateway import Gateway
from headway.gateway.json_response import error_response
from headway.gateway.request_record import RequestRecord, open_record
from headway.gateway.tracing import RequestSpan, trace

_log = structlog.stdlib.get_logger("headway.gateway")

PROBES: Final = frozenset({"/livez", "/healthz", "/readyz", "/metrics"})
"""Asked every few seconds by machines: logged at debug level."""

CLIENT_GONE: Final = 499
"""nginx's status for a client that left before its answer; never sent, only logged and counted."""


class RequestLog:
    """Pure ASGI, since BaseHTTPMiddleware would put a queue between a stream and its client."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run one request; nothing that it raises, but a cancellation, goes further out."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = open_record(scope, self._gateway.clock())
        traces = self._gateway.traces
        span = None if traces is None or scope["path"] in PROBES else trace(traces, scope)
        sender = _Sender(self._gateway, record, send)
        status = CLIENT_GONE
        try:
            await self._app(scope, receive, sender)
            status = sender.status
        except ClientGoneError:
            record.note(error="client_disconnected")
        except Exception:
            status = 500
            record.note(error="internal_error")
            _log.exception("request failed", request_id=record.request_id)
            if sender.status == CLIENT_GONE:
                await error_response(internal_error())(scope, receive, sender)
        finally:
            self._finish(scope, record, status, span)

    def _finish(self, scope: Scope, record: RequestRecord, status: int, span: RequestSpan | None) -> None:
        if record.leave is not None:
            record.leave()
        seconds = self._gateway.clock() - record.started
        # An unmatched path has no route, and its own text would be a label that clients choose.
        route = getattr(scope.get("route"), "path", "unmatched")
        metrics = self._gateway.metrics
        metrics.requests.labels(_method(scope), route, str(status)).inc()
        metrics.request_seconds.labels(route).observe(seconds)
        if status >= 400 and "error" in record.fields:
            metrics.refused.labels(record.fields["error"]).inc()
        if span is not None:
            span.end(name=f"{_method(scope)} {route}", status=status, fields=record.fields)
        write = _log.debug if route in PROBES else _log.info
        write(
            "request",
            request_id=record.request_id,
            method=scope["method"],
            route=route,
            status=status,
            duration_ms=round(seconds * 1000, 1),
            **record.fields,
        )


class _Sender:
    """Adds the id and the time taken to the head of the answer, and remembers its status."""

    def __init__(self, gateway: Gateway, record: RequestRecord, send: Send) -> None:
        self.status = CLIENT_GONE
        self._gateway = gateway
        self._record = record
        self._send = send

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["x-request-id"] = self._record.request_id
            elapsed_ms = (self._gateway.clock() - self._record.started) * 1000
            headers["openai-processing-ms"] = str(round(elapsed_ms))
        await self._send(message)


def _method(scope: Scope) -> str:
    method: str = scope["method"]
    return method if method in {"GET", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH"} else "other"
