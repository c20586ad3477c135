"""Who leaves first: the work, the client, or the gateway itself."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from enum import StrEnum
from typing import Any

from starlette.types import Receive

from headway.gateway.stopping import Stopping


class Departure(StrEnum):
    """Who left before the work was done."""

    CLIENT = "client"
    GATEWAY = "gateway"


async def run_until_departure(
    work: Coroutine[Any, Any, None], receive: Receive, stopping: Stopping
) -> Departure | None:
    """Run the work; if the client or the gateway leaves first, stop it and say who.

    Raises what the work raises. The request's body must have been read, since its channel is watched for the
    disconnect. When the caller is cancelled, the work is stopped before the cancellation goes on.
    """
    task = asyncio.create_task(work)
    client = asyncio.create_task(_disconnected(receive))
    gateway = asyncio.create_task(stopping.wait_for_end())
    watched = (task, client, gateway)
    try:
        await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        return Departure.CLIENT if client.done() else Departure.GATEWAY
    finally:
        for each in watched:
            each.cancel()
        await asyncio.gather(*watched, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
