"""Logs are one JSON object per line, carry who and what, and keep words out."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from headway.services.logs import configure_logging, get_logger, job_fields, trace_id
from headway.services.settings import LogFormat

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)
    structlog.reset_defaults()


def fail(prompt: str) -> None:
    raise ValueError(str(len(prompt)))


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_says_when_where_and_about_which_job() -> None:
    out = io.StringIO()
    configure_logging(stream=out, fields={"worker": "w-1"})
    log = get_logger("test").bind(**job_fields("m:0:k", tenant="acme", traceparent=TRACE))
    log.info("job_started", prompt_tokens=3)
    (line,) = lines(out)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "job_started",
        "level": "info",
        "logger": "test",
        "worker": "w-1",
        "job": "m:0:k",
        "tenant": "acme",
        "trace": "4bf92f3577b34da6a3ce929d0e0e4736",
        "prompt_tokens": 3,
    }


def test_other_libraries_speak_the_same_way() -> None:
    out = io.StringIO()
    configure_logging(stream=out, fields={"worker": "w-1"})
    logging.getLogger("some.library").warning("took %d ms", 7)
    logging.getLogger("asyncio").info("an inside detail")
    (line,) = lines(out)
    assert (line["event"], line["logger"], line["worker"]) == ("took 7 ms", "some.library", "w-1")


@pytest.mark.parametrize("style", ["json", "pretty"])
@pytest.mark.parametrize("level", ["debug", "info"])
def test_words_are_masked_in_every_format_and_at_every_level(style: LogFormat, level: str) -> None:
    out = io.StringIO()
    configure_logging(stream=out, format=style, level=level)
    get_logger("test").info("oops", prompt="secret", token_ids=[111777333, 72], content=None, job="k")
    logging.getLogger("some.library").warning("oops", extra={"text": "secret"})
    assert "<6 masked>" in out.getvalue()
    assert "<2 masked>" in out.getvalue()
    assert "<masked>" in out.getvalue()
    assert "secret" not in out.getvalue()
    assert "111777333" not in out.getvalue().partition("oops")[2]


def test_a_traceback_is_one_field_and_shows_no_variables() -> None:
    for style in ("json", "pretty"):
        out = io.StringIO()
        configure_logging(stream=out, format=style)
        try:
            fail("confidential")
        except ValueError:
            get_logger("test").exception("failed")
        assert "ValueError: 12" in out.getvalue()
        assert "'confidential'" not in out.getvalue()


def test_levels_filter_and_odd_values_do_not_break_a_line() -> None:
    out = io.StringIO()
    configure_logging(stream=out, level="warning")
    get_logger("test").info("quiet")
    get_logger("test").warning("loud", odd=object(), keyed={1: 2})
    (line,) = lines(out)
    assert line["event"] == "loud"
    assert "object object" in line["odd"]


@pytest.mark.parametrize("broken", [None, "", "00-abc", "no-trace"])
def test_a_broken_traceparent_is_no_trace(broken: str | None) -> None:
    assert trace_id(broken) is None
