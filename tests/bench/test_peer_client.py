"""The client that all servers meet reads streams as they come, and takes no answer of another length."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent.parent.parent / "ops/bench"


@pytest.fixture(scope="module")
def client() -> Any:
    sys.path.insert(0, str(FOLDER))
    yield import_module("peer_client")
    sys.path.remove(str(FOLDER))


def work(client: Any, prompt: int = 3, answer: int = 2) -> Any:
    return client.Work(tuple(range(prompt)), answer)


def event(text: str | None = None, **usage: int) -> bytes:
    choices = [] if text is None else [{"text": text}]
    return b"data: " + json.dumps({"choices": choices, "usage": usage or None}).encode() + b"\n\n"


USAGE = event(prompt_tokens=3, completion_tokens=2)
DONE = b"data: [DONE]\n\n"


async def serve(pieces: Sequence[bytes], *, is_chunked: bool = True, status: str = "200 OK") -> Any:
    """A server that sends these pieces to everybody; the server and its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        kind = "Transfer-Encoding: chunked" if is_chunked else "X-Kind: plain"
        writer.write(f"HTTP/1.1 {status}\r\n{kind}\r\n\r\n".encode())
        for piece in pieces:
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
            await writer.drain()
        if is_chunked:
            writer.write(b"0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]


async def asked(client: Any, pieces: Sequence[bytes], **how: Any) -> Any:
    server, port = await serve(pieces, **how)
    async with server:
        return await client.ask(port, "model", work(client))


@pytest.mark.parametrize("is_chunked", [True, False])
async def test_every_event_with_text_has_a_time(client: Any, is_chunked: bool) -> None:
    pieces = [event("a"), event(""), event("b"), USAGE, DONE]
    timed = await asked(client, pieces, is_chunked=is_chunked)
    assert len(timed.events) == 2
    assert timed.tokens == 2
    assert timed.asked <= timed.events[0] <= timed.events[1]


async def test_an_event_may_come_in_pieces(client: Any) -> None:
    whole = event("a") + event("b") + USAGE + DONE
    timed = await asked(client, [whole[place : place + 7] for place in range(0, len(whole), 7)])
    assert len(timed.events) == 2


async def test_another_number_of_tokens_is_no_answer(client: Any) -> None:
    with pytest.raises(client.WrongAnswerError, match="2 were asked for"):
        await asked(client, [event("a"), event(prompt_tokens=3, completion_tokens=1), DONE])
    with pytest.raises(client.WrongAnswerError, match="3 and 2 were asked for"):
        await asked(client, [event("a"), event(prompt_tokens=4, completion_tokens=2), DONE])


async def test_an_error_is_told_in_the_servers_words(client: Any) -> None:
    with pytest.raises(client.WrongAnswerError, match="503 Later: loading"):
        await asked(client, [b"loading"], is_chunked=False, status="503 Later")


async def test_a_cell_keeps_so_many_running_and_answers_all(client: Any) -> None:
    server, port = await serve([event("a"), event("b"), USAGE, DONE])
    async with server:
        answers = await client.run_cell(port, "model", [work(client) for _ in range(7)], 3)
    assert len(answers) == 7
