"""Reads a server-sent event stream as a browser does: ids, event types, data, comments."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx


@dataclass(frozen=True, slots=True)
class Event:
    data: str
    id: str | None = None
    event: str | None = None

    @property
    def json(self) -> Any:
        return json.loads(self.data)


def parse_block(block: str) -> Event | None:
    """One blank-line-terminated block; None for a comment."""
    fields: dict[str, str] = {}
    for line in block.split("\n"):
        name, _, value = line.partition(": ")
        fields[name] = value
    return Event(fields["data"], fields.get("id"), fields.get("event")) if "data" in fields else None


def parse(body: str) -> list[Event]:
    assert body.endswith("\n\n") or not body
    blocks = [parse_block(block) for block in body.split("\n\n")[:-1]]
    return [event for event in blocks if event is not None]


async def events(response: httpx.Response) -> AsyncIterator[Event]:
    """Events as they arrive over a real connection."""
    buffer = ""
    async for text in response.aiter_text():
        buffer += text
        while "\n\n" in buffer:
            block, buffer = buffer.split("\n\n", 1)
            if (event := parse_block(block)) is not None:
                yield event


def chat_text(chunks: list[Any], index: int = 0) -> str:
    return "".join(
        choice["delta"].get("content", "")
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["index"] == index
    )
