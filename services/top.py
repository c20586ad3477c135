"""``headway top``: the queue and the fleet, once or once a second."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Final

from headway.queueing.client import Client
from headway.queueing.errors import QueueUnavailableError
from headway.queueing.figures import Figures, look
from headway.services.columns import shortened, terminal_width
from headway.services.connection import locate
from headway.services.errors import UsageError
from headway.services.job_commands import with_client
from headway.services.live_screen import live_screen
from headway.services.top_frame import frame

EVERY_SECONDS: Final = 1.0
ONCE_LINES: Final = 60
"""Of a frame that scrolls."""


def show_once(redis_url: str | None, state_dir: Path, *, as_json: bool) -> None:
    """Print one frame. Raises ServiceError."""
    url, _ = locate(redis_url, state_dir)

    async def act(client: Client) -> Figures:
        return await look(client.queue, _now_ms())

    figures = with_client(url, act)
    print(
        json.dumps(figures.to_json()) if as_json else "\n".join(frame(figures, terminal_width(), ONCE_LINES))
    )


def show_live(redis_url: str | None, state_dir: Path) -> None:
    """Draw a frame every second until somebody leaves. A server that goes away is waited for.

    Raises ServiceError.
    """
    if not sys.stdout.isatty():
        raise UsageError("there is no terminal to draw on", hint="headway top --once, or --once --json")
    url, _ = locate(redis_url, state_dir)
    with_client(url, _live)


async def _live(client: Client) -> None:
    figures = await look(client.queue, _now_ms())
    with live_screen() as screen:
        problem = ""
        while True:
            size = shutil.get_terminal_size()
            lines = frame(figures, size.columns, size.lines - 2)
            note = problem or "q: leave"
            screen.draw([*lines[: size.lines - 2], shortened(note, size.columns)], size.lines)
            if await screen.wait(EVERY_SECONDS):
                return
            try:
                figures, problem = await look(client.queue, _now_ms()), ""
            except QueueUnavailableError as error:
                problem = f"asking again: {error}"


def _now_ms() -> int:
    return round(time.time() * 1000)
