"""One process of readers: opens many streams over HTTP, reads each to its end, and checks every token.

While the streams run nothing is parsed: what comes is kept with the time of its coming, so that the readers
take as little as may be from the cores that the gateway runs on. Orders come as JSON lines on standard input.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, cast

import uvloop

from headway.engine.scripted import ByteTokenizer, ScriptedRunner
from headway.engine.values import Sampling

LAST_CHUNK: Final = b"0\r\n\r\n"
"""How HTTP ends a body of chunks."""
PATIENCE_SECONDS: Final = 300.0


@dataclass(frozen=True)
class Order:
    """Which streams to open, and how."""

    port: int
    model: str
    first: int
    """Number of the first stream; it is in its prompt."""
    step: int
    streams: int
    tokens: int
    per_second: float
    """Requests a second."""
    file: str
    """Where what was read is written."""

    def tokens_of(self, number: int) -> int:
        """Not all end at once."""
        return self.tokens + number * 7919 % max(1, self.tokens // 4)


@dataclass
class Answer:
    """What was read of one stream."""

    job: str = ""
    problem: str = ""
    """Empty: every token came, once, and the end is as it should be."""
    times: list[float] = field(default_factory=list[float])
    """When each token came, on the machine's monotonic clock."""
    sizes: int = 0
    """Bytes of the whole answer."""


class Stream(asyncio.Protocol):
    """One connection with one answer."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._pieces: list[tuple[float, bytes]] = []
        self._tail = b""
        self._transport: asyncio.Transport | None = None
        loop = asyncio.get_running_loop()
        self.begun: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Keep it with the time."""
        self._pieces.append((time.monotonic(), data))
        if not self.begun.done():
            self.begun.set_result(None)
        self._tail = (self._tail + data)[-len(LAST_CHUNK) :]
        if self._tail == LAST_CHUNK and self._transport is not None:
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over, one way or the other: what came tells which."""
        del exc
        for future in (self.begun, self.ended):
            if not future.done():
                future.set_result(None)

    def answer(self, expected: str) -> Answer:
        """What came, checked against what the model says."""
        return answer_of(self._pieces, expected)


def answer_of(pieces: list[tuple[float, bytes]], expected: str) -> Answer:
    """What came and when, checked against what the model says."""
    answer = Answer(sizes=sum(len(piece) for _, piece in pieces))
    try:
        _read(pieces, answer, expected)
    except (ValueError, KeyError, IndexError) as error:
        answer.problem = f"not readable: {error!r}"
    return answer


def _read(pieces: list[tuple[float, bytes]], answer: Answer, expected: str) -> None:
    ends = list(accumulate(len(piece) for _, piece in pieces))
    whole = b"".join(piece for _, piece in pieces)
    head, _, _ = whole.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    if not lines[0].startswith("HTTP/1.1 200"):
        answer.problem = whole[:300].decode(errors="replace") or "closed without an answer"
        return
    answer.job = headers["x-headway-job-id"]
    at, text, last = len(head) + 4, "", ""
    usage = finish = None
    while True:
        line_end = whole.index(b"\r\n", at)
        start, size = line_end + 2, int(whole[at:line_end], 16)
        if size == 0:
            break
        at = start + size + 2
        came = pieces[bisect_left(ends, start + size)][0]
        for frame in whole[start : start + size].decode().split("\n\n")[:-1]:
            last = frame.rpartition("data: ")[2]
            if frame.startswith(":") or last == "[DONE]":
                continue
            chunk = json.loads(last)
            if "error" in chunk:
                answer.problem = last
                return
            usage = chunk["usage"] or usage
            for choice in chunk["choices"]:
                new = choice["delta"].get("content", "")
                finish = choice["finish_reason"] or finish
                text += new
                answer.times += [came] * len(new)
    answer.problem = _problem(text, expected, last, finish, usage)


def _problem(text: str, expected: str, last: str, finish: str | None, usage: Any) -> str:
    if text != expected:
        return f"{len(text)} tokens, and not those of the model: {text!r} instead of {expected!r}"
    if last != "[DONE]" or finish != "length":
        return f"ended with {last!r} and finish_reason {finish!r}"
    if usage is None or usage["completion_tokens"] != len(expected):
        return f"usage {usage!r} for {len(expected)} tokens"
    return ""


def prompt_of(number: int) -> str:
    """The prompt of a stream."""
    return f"Reader {number}, go on."


def expected_text(number: int, tokens: int) -> str:
    """What the scripted model answers, by the history alone."""
    tokenizer = ByteTokenizer()
    prompt = tokenizer.render_chat([{"role": "user", "content": prompt_of(number)}])
    ids = ScriptedRunner().reference(prompt, Sampling(temperature=0.0, ignore_eos=True), tokens)
    return bytes(ids).decode()


def request_of(order: Order, number: int, **more: object) -> bytes:
    """One HTTP request for a stream."""
    body = json.dumps(
        {
            "model": order.model,
            "messages": [{"role": "user", "content": prompt_of(number)}],
            "max_completion_tokens": order.tokens_of(number),
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **more,
        }
    ).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:{order.port}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def read_all(order: Order) -> list[dict[str, Any]]:
    """Open the streams at the pace that is asked for and read them; what came."""
    loop = asyncio.get_running_loop()
    streams: dict[int, Stream] = {}
    started = loop.time()
    for place in range(order.streams):
        number = order.first + place * order.step
        stream = streams[number] = Stream(request_of(order, number))
        await loop.create_connection(lambda stream=stream: stream, "127.0.0.1", order.port)
        await asyncio.sleep(started + (place + 1) / order.per_second - loop.time())
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(*(stream.begun for stream in streams.values()))
        print("open", flush=True)
        await asyncio.wait([stream.ended for stream in streams.values()], return_when="FIRST_COMPLETED")
        print("first end", flush=True)
        await asyncio.gather(*(stream.ended for stream in streams.values()))
    print("ended", flush=True)
    return [
        vars(stream.answer(expected_text(number, order.tokens_of(number))))
        for number, stream in streams.items()
    ]


def main() -> None:
    """Carry out orders until there are none."""
    for line in sys.stdin:
        order = Order(**json.loads(line))
        Path(order.file).write_text(json.dumps(uvloop.run(read_all(order))))
        print("written", flush=True)


if __name__ == "__main__":
    main()
