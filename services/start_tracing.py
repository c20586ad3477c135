"""Tracing, where somebody asked for it: OpenTelemetry is imported only then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.services.errors import UsageError

if TYPE_CHECKING:
    from headway.services.tracing import Tracing


def start_tracing(url: str | None, *, service: str, instance: str) -> Tracing | None:
    """A process's tracing, None without a collector's URL; raises UsageError."""
    if not url:
        return None
    if not url.startswith(("http://", "https://")):
        raise UsageError(
            f"--otlp {url}: traces go over HTTP",
            hint="a collector's OTLP port, such as http://collector:4318",
        )
    try:
        from headway.services.tracing import open_tracing
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("opentelemetry"):
            raise
        raise UsageError(
            "--otlp needs OpenTelemetry, which is not installed", hint="pip install 'headway[otel]'"
        ) from None
    return open_tracing(url, service=service, instance=instance)
