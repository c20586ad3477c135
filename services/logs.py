"""Structured logs of every Headway process: JSON lines, or colours on a terminal.

What producers ask and models answer is nobody's business but theirs: fields that could hold it are masked
here, whoever wrote them. There is no switch: a job's text is read where it is kept, under its id.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any, Final, TextIO

import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from headway.services.settings import LogFormat

Log = structlog.stdlib.BoundLogger

TEXT_FIELDS: Final = frozenset(
    {
        "prompt",
        "prompt_token_ids",
        "messages",
        "content",
        "text",
        "token_ids",
        "body",
        "answer",
        "delta",
        "tail",
    }
)
"""Fields that would carry a producer's or a model's words."""

QUIET_LIBRARIES: Final = ("asyncio", "httpx", "httpcore", "urllib3", "filelock")
"""Their INFO lines describe their insides, not our service."""


def configure_logging(
    *,
    level: str = "info",
    format: LogFormat = "auto",  # noqa: A002 - the command line's word for it
    stream: TextIO | None = None,
    fields: Mapping[str, str] | None = None,
) -> None:
    """Route structlog and stdlib logging to one stream (stderr by default); ``fields`` go on every line.

    ``auto``: pretty when the stream is a terminal, JSON otherwise. May be called again, for example by tests.
    """
    out = sys.stderr if stream is None else stream
    shared = _shared_processors(dict(fields or {}))
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,  # so that a second call reaches loggers that exist already
    )
    handler = logging.StreamHandler(out)
    pretty = format == "pretty" or (format == "auto" and out.isatty())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *(_pretty(out) if pretty else _json()),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in QUIET_LIBRARIES:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def get_logger(name: str) -> Log:
    """A logger whose lines carry ``logger=name``; works before and after ``configure_logging``."""
    log: Log = structlog.stdlib.get_logger(name)
    return log


def trace_id(traceparent: str | None) -> str | None:
    """The trace id of a W3C ``traceparent`` (version-traceid-parent-flags), or None."""
    parts = (traceparent or "").split("-")
    return parts[1] if len(parts) == 4 else None


def job_fields(job_id: str, *, tenant: str | None = None, traceparent: str | None = None) -> dict[str, str]:
    """The fields that every line about a job carries, so that one search finds its whole life."""
    fields = {"job": job_id, "tenant": tenant, "trace": trace_id(traceparent)}
    return {name: value for name, value in fields.items() if value is not None}


def _shared_processors(fields: dict[str, str]) -> list[Processor]:
    """What happens to every line, ours and other libraries', before it is rendered."""

    def add_fields(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        for name, value in fields.items():
            event.setdefault(name, value)
        return event

    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        add_fields,
        _mask_text,
    ]


def _mask_text(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Replace words by their length: enough to debug with, nothing to leak."""
    for name in TEXT_FIELDS & event.keys():
        value: Any = event[name]
        event[name] = f"<{len(value)} masked>" if hasattr(value, "__len__") else "<masked>"
    return event


def _json() -> list[Processor]:
    def dumps(event: object, **_: object) -> str:
        return orjson.dumps(event, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()

    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(serializer=dumps)]


def _pretty(stream: TextIO) -> list[Processor]:
    # plain_traceback: the rich one prints local variables, among them prompts.
    return [
        structlog.dev.ConsoleRenderer(
            colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    ]
