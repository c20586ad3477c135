"""Somebody looks while the streams run: a console's live feed, and Prometheus' scrapes."""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

SCRAPE_SECONDS: Final = 2.0
_OPEN = re.compile(r"^headway_gateway_open_streams (\S+)$", re.MULTILINE)


@dataclass
class Seen:
    """What the watchers saw."""

    scrapes: list[float] = field(default_factory=list[float])
    """Seconds that each took."""
    scrape_bytes: int = 0
    open_streams: list[float] = field(default_factory=list[float])
    """What each scrape said."""
    figures: list[float] = field(default_factory=list[float])
    """When each look at the queue came to the console."""
    steps: int = 0
    """Views of workers' steps."""
    running: int = 0
    """Running jobs that the console was shown last."""
    problems: list[str] = field(default_factory=list[str])


async def watch(port: int, seconds: float) -> Seen:
    """Scrape and watch for that long."""
    seen = Seen()
    base = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=base, timeout=httpx.Timeout(30.0), trust_env=False) as http:
        console = asyncio.create_task(_watch_console(http, seen))
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            await _scrape(http, seen)
            await asyncio.sleep(SCRAPE_SECONDS)
        console.cancel()
        await asyncio.gather(console, return_exceptions=True)
    if console.done() and not console.cancelled() and (error := console.exception()):
        seen.problems.append(f"the console's feed: {error!r}")
    return seen


async def _scrape(http: httpx.AsyncClient, seen: Seen) -> None:
    began = time.monotonic()
    reply = await http.get("/metrics")
    seen.scrapes.append(time.monotonic() - began)
    seen.scrape_bytes = len(reply.content)
    found = _OPEN.search(reply.text)
    if reply.status_code != 200 or found is None:
        seen.problems.append(f"/metrics: {reply.status_code} {reply.text[:200]}")
    else:
        seen.open_streams.append(float(found[1]))


async def _watch_console(http: httpx.AsyncClient, seen: Seen) -> None:
    event = ""
    async with http.stream("GET", "/console/api/live") as feed:
        if feed.status_code != 200:
            seen.problems.append(f"/console/api/live: {feed.status_code}")
            return
        async for line in feed.aiter_lines():
            if line.startswith("event: "):
                event = line.removeprefix("event: ")
            elif line.startswith("data: "):
                _note(seen, event, json.loads(line.removeprefix("data: ")))


def _note(seen: Seen, event: str, told: dict[str, Any]) -> None:
    if event == "figures":
        seen.figures.append(time.monotonic())
        seen.running = sum(lane.get("running", 0) for lane in told.get("models", ()))
    elif event == "steps":
        seen.steps += 1
    else:
        seen.problems.append(f"{event}: {str(told)[:200]}")
