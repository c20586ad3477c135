"""What a benchmark's client costs itself: CPU time for each streamed event, by the HTTP client it is made of.

A server process writes the same events to every connection; each client reads so many streams at a time,
takes the time of each event and reads its JSON. Its own CPU time is compared: no quiet machine is needed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import httpx
import orjson
import uvloop

from headway.services.bench.sse_connection import Address, Dialler, SseConnection, request_bytes

EVENT = orjson.dumps(
    {
        "id": "chatcmpl-01M8PAM1JD685Y86MD9MJ36RNB",
        "object": "chat.completion.chunk",
        "created": 1796045657,
        "model": "smollm2-135m",
        "choices": [{"index": 0, "delta": {"content": " token"}, "logprobs": None, "finish_reason": None}],
    }
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
Note = Callable[[bytes], None]
Client = Callable[[int, int, Note], Awaitable[None]]


def serve(port_of: Any, events: int, gap: float) -> None:
    """Write ``events`` events to whoever asks, one each ``gap`` seconds."""
    data = b"data: " + EVENT + b"\n\n"
    chunk = f"{len(data):x}\r\n".encode() + data + b"\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        for _ in range(events):
            writer.write(chunk)
            await asyncio.sleep(gap)
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=4096)
        port_of.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(run())


async def by_httpx(port: int, streams: int, note: Note) -> None:
    """With httpx."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=None, limits=limits, trust_env=False) as http:

        async def one() -> None:
            async with http.stream("GET", f"http://127.0.0.1:{port}/") as answer:
                async for line in answer.aiter_lines():
                    if line.startswith("data:"):
                        note(line[5:].encode())

        await asyncio.gather(*(one() for _ in range(streams)))


async def by_aiohttp(port: int, streams: int, note: Note) -> None:
    """With aiohttp."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def one() -> None:
            async with http.get(f"http://127.0.0.1:{port}/") as answer:
                async for line in answer.content:
                    if line.startswith(b"data:"):
                        note(line[5:])

        await asyncio.gather(*(one() for _ in range(streams)))


async def by_headway(port: int, streams: int, note: Note) -> None:
    """With ``headway bench``'s own: httptools on a bare protocol."""
    address = Address.parse(f"http://127.0.0.1:{port}")
    dialler = Dialler(address)
    await dialler.prepare()
    request = request_bytes(address, "GET", "/", {}, b"")

    async def one() -> None:
        connection = SseConnection(request, note)
        await dialler.connect(connection)
        await connection.ended

    await asyncio.gather(*(one() for _ in range(streams)))


CLIENTS: dict[str, Client] = {"httpx": by_httpx, "aiohttp": by_aiohttp, "headway bench": by_headway}


def main() -> None:
    """Print each client's microseconds of CPU time for an event."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--gap", type=float, default=0.02, help="seconds between two events of a stream")
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    for name, client in CLIENTS.items():
        costs: list[float] = []
        for _ in range(asked.rounds):
            mine, theirs = multiprocessing.Pipe()
            server = multiprocessing.Process(
                target=serve, args=(theirs, asked.events, asked.gap), daemon=True
            )
            server.start()
            costs.append(uvloop.run(cost(client, mine.recv(), asked)))
            server.terminate()
            server.join()
        median = sorted(costs)[len(costs) // 2]
        print(json.dumps({"client": name, "microseconds_per_event": round(1e6 * median, 2)}), flush=True)


async def cost(client: Client, port: int, asked: argparse.Namespace) -> float:
    """CPU seconds for each event."""
    times: list[float] = []

    def note(event: bytes) -> None:
        times.append(time.monotonic())
        assert orjson.loads(event)["choices"]

    began = time.process_time()
    await client(port, asked.streams, note)
    spent = time.process_time() - began
    assert len(times) == asked.streams * asked.events
    return spent / len(times)


if __name__ == "__main__":
    main()
