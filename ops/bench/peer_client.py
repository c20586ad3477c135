"""The client that all servers meet: OpenAI's completions with token ids, streamed, so many at a time.

A plain asyncio client: it shares the machine with the servers, so it should cost little, the same for all.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from peer_figures import Timed
from peer_work import Work


class WrongAnswerError(Exception):
    """A server answered with an error, or with another number of tokens than was asked for."""


async def run_cell(port: int, model: str, work: Sequence[Work], concurrency: int) -> list[Timed]:
    """Ask everything, ``concurrency`` at a time, each client going on as soon as its answer has ended."""
    waiting = iter(work)
    answers: list[Timed] = []

    async def client() -> None:
        for one in waiting:
            answers.append(await ask(port, model, one))  # noqa: PERF401 - one after another

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(concurrency, len(work))):
            tasks.create_task(client())
    return answers


async def ask(port: int, model: str, work: Work) -> Timed:
    """One answer, with the time of each event that brought text. Raises WrongAnswerError, OSError."""
    body = {
        "model": model,
        "prompt": work.prompt,
        "max_tokens": work.answer_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    payload = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
    )
    asked = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    try:
        writer.write(head.encode() + payload)
        events: list[float] = []
        usage: dict[str, Any] = {}
        async for moment, event in _events(reader):
            if any(choice.get("text") for choice in event.get("choices", ())):
                events.append(moment)
            usage = event.get("usage") or usage
    finally:
        writer.close()
    counted = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    if counted != (len(work.prompt), work.answer_tokens) or not events:
        raise WrongAnswerError(
            f"{counted} tokens of prompt and answer in {len(events)} events, "
            f"but {len(work.prompt)} and {work.answer_tokens} were asked for"
        )
    return Timed(asked, tuple(events), work.answer_tokens)


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[tuple[float, dict[str, Any]]]:
    """Server-sent events with the time at which each arrived."""
    status = await reader.readline()
    is_chunked = False
    while (line := await reader.readline()) not in {b"\r\n", b""}:
        is_chunked |= line.lower().startswith(b"transfer-encoding: chunked")
    if b" 200 " not in status:
        refused = await reader.read(2000)
        raise WrongAnswerError(f"{status.decode().strip()}: {refused.decode(errors='replace')}")
    rest = b""
    async for chunk in _chunks(reader, is_chunked=is_chunked):
        moment = time.monotonic()
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            text = line.strip()
            if text.startswith(b"data:") and text != b"data: [DONE]":
                yield moment, json.loads(text[5:])


async def _chunks(reader: asyncio.StreamReader, *, is_chunked: bool) -> AsyncIterator[bytes]:
    if not is_chunked:
        while chunk := await reader.read(1 << 16):
            yield chunk
        return
    while size := int((await reader.readline()).split(b";")[0] or b"0", 16):
        yield await reader.readexactly(size)
        await reader.readline()
