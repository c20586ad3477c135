"""The readers' benchmark notices a stream that is cut, lost or wrong, however it is cut into pieces."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent.parent.parent / "ops/bench"
HEAD = b"HTTP/1.1 200 OK\r\nx-headway-job-id: scripted:0:Ab3\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module", autouse=True)
def folder() -> Iterator[None]:
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def streams(folder: None) -> Any:
    return import_module("reader_streams")


def frame(text: str | None = None, *, finish: str | None = None, usage: int | None = None) -> str:
    choices = [] if usage else [{"delta": {} if text is None else {"content": text}, "finish_reason": finish}]
    chunk = {"choices": choices, "usage": {"completion_tokens": usage} if usage else None}
    return f"id: 1-0\ndata: {json.dumps(chunk)}\n\n"


END = (frame(finish="length"), frame(usage=3), "data: [DONE]\n\n")


def wire(*writes: str) -> bytes:
    chunks = [b"%x\r\n%s\r\n" % (len(write), write.encode()) for write in writes]
    return HEAD + b"".join(chunks) + b"0\r\n\r\n"


def read(streams: Any, raw: bytes, size: int, expected: str = "abc") -> Any:
    """The answer, had every ``size`` bytes come a second after those before them."""
    pieces = [(float(at), raw[start : start + size]) for at, start in enumerate(range(0, len(raw), size))]
    return streams.answer_of(pieces, expected)


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_a_whole_answer_is_whole_in_any_pieces_and_a_token_has_come_when_its_write_has(
    streams: Any, size: int
) -> None:
    writes = (frame(""), frame("a"), ": ping\n\n", frame("b") + frame("c"), *END)
    raw = wire(*writes)
    answer = read(streams, raw, size)
    assert (answer.problem, answer.job, answer.sizes) == ("", "scripted:0:Ab3", len(raw))
    last_byte_of_a = raw.index(writes[1].encode()) + len(writes[1]) - 1
    last_byte_of_c = raw.index(frame("c").encode()) + len(frame("c")) - 1
    assert answer.times == [last_byte_of_a // size, last_byte_of_c // size, last_byte_of_c // size]


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (wire(frame("a"), frame("c"), *END), "not those of the model"),
        (wire(frame("a"), frame("b"), frame("b"), frame("c"), *END), "not those of the model"),
        (wire(frame("abc"), *END[:2]), "ended with"),
        (wire(frame("abc"), frame(finish="stop"), *END[1:]), "ended with"),
        (wire(frame("abc"), END[0], frame(usage=2), END[2]), "usage"),
        (wire(frame("abc"), 'data: {"error": {"code": "worker_lost"}}\n\n'), "worker_lost"),
        (wire(frame("abc"), *END)[:-30], "not readable"),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n{}", "503"),
        (b"", ""),
    ],
    ids=["lost", "twice", "no DONE", "another end", "usage", "error", "cut", "refused", "nothing"],
)
def test_what_is_not_a_whole_answer_is_told(streams: Any, raw: bytes, problem: str) -> None:
    told = read(streams, raw, 50).problem
    assert told
    assert problem in told


def test_a_tokens_delay_is_counted_from_its_own_write() -> None:
    figures = import_module("reader_figures")
    answers = [
        {"job": "scripted:0:one", "times": [1.25, 2.5, 3.5]},  # the end in a write of its own
        {"job": "scripted:0:two", "times": [1.0, 2.0]},  # two tokens in one write: which is which?
        {"job": "scripted:0:none", "times": [1.0]},
    ]
    written = {"one": [1.0, 2.0, 3.0, 3.1], "two": [0.5]}
    assert figures.latencies(answers, written) == [(1.0, 0.25), (2.0, 0.5), (3.0, 0.5)]


def test_too_few_open_files_are_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    readers = import_module("readers")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 1500))
    with pytest.raises(SystemExit, match=r"hard limit is 1500: raise it .*--streams 1244"):
        readers.check_open_files(2000)
