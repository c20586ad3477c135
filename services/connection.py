"""How a command finds its server: the URL it was given, else the running ``headway up`` of a state dir."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from headway.queueing.address import SCHEMES_HINT, parse_address
from headway.queueing.errors import InvalidUrlError, NotNowError, QueueUnavailableError, ServerUnsuitableError
from headway.services.errors import NotReachableError, StartError, UsageError
from headway.services.settings import mask_password
from headway.services.state import StateDir, UpState

if TYPE_CHECKING:  # its validation library is imported later, while the children load
    from headway.queueing.protocol import Queue

CLOSE_SECONDS = 1.0


def check_url(url: str) -> str:
    """The URL; raises UsageError for one that names no server."""
    try:
        parse_address(url)
    except InvalidUrlError as error:
        raise UsageError(
            f"{mask_password(url)!r} is no Redis URL: {error}", hint=f"--redis-url {SCHEMES_HINT}"
        ) from None
    return url


def open_queue(url: str) -> Queue:
    """The queue at a server; nothing is connected yet."""
    # Imported here: it takes longer than everything else that most commands do.
    from headway.queueing.redis_queue import RedisQueue

    return RedisQueue(check_url(url))


async def close_queue(queue: Queue) -> None:
    """Release a queue's connections; a connection that will not close is no reason to stay."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await queue.close()


async def checked_queue(url: str) -> tuple[Queue, tuple[str, ...]]:
    """The queue at a server that is prepared and keeps jobs, with warnings.

    Raises NotReachableError, and StartError when the server's version or settings would lose jobs.
    """
    queue = open_queue(url)
    try:
        return queue, await queue.check_server()
    except QueueUnavailableError as error:
        await close_queue(queue)
        raise not_reachable(url, error) from None
    except ServerUnsuitableError as error:
        await close_queue(queue)
        raise StartError(f"{mask_password(url)} would lose jobs: {error}") from None


def not_reachable(url: str, error: Exception) -> NotReachableError:
    """What to say when no server answers, or one that takes nothing now."""
    if isinstance(error, NotNowError):
        return NotReachableError(
            f"the server at {mask_password(url)} takes nothing now: {error}", hint="headway doctor says why"
        )
    cause = str(error).removeprefix("the queue's server cannot be reached: ")
    return NotReachableError(
        f"no Redis or Valkey answers at {mask_password(url)}: {cause}",
        hint="start it, or correct --redis-url / HEADWAY_REDIS_URL",
    )


def locate(redis_url: str | None, state_dir: Path) -> tuple[str, UpState | None]:
    """The server's URL, and the ``headway up`` it was found through (None: the URL was given).

    Raises NotReachableError when no URL was given and nothing runs in the state dir.
    """
    if redis_url is not None:
        return check_url(redis_url), None
    state = StateDir(state_dir).read_live()
    if state is None:
        raise NotReachableError(
            f"no headway up runs in {state_dir}",
            hint="start one (headway up), name its --state-dir, or pass --redis-url URL",
        )
    return state.redis.url, state
