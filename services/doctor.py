"""``headway doctor``: looks at a queue's server and its fleet, and says what should be otherwise."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Final

from headway.queueing.errors import QueueingError, ServerUnsuitableError
from headway.queueing.redis_queue import RedisQueue
from headway.queueing.server import Server
from headway.services.connection import CLOSE_SECONDS, close_queue, locate
from headway.services.doctor_facts import Facts, gather
from headway.services.doctor_fleet import FLEET_CHECKS
from headway.services.doctor_report import Check, Finding, Line, Report, examined, fail, ok
from headway.services.doctor_server import SERVER_CHECKS
from headway.services.settings import mask_password

ANSWER_SECONDS: Final = 3.0
"""For the first reply: a server that hangs, or a port of something else, is told apart soon."""

REACH: Final = Check(
    "reach",
    "Nothing works without the queue's server.",
    "Start it, or correct --redis-url / HEADWAY_REDIS_URL.",
    ok,
)
CHECKS: Final[tuple[Check[Facts], ...]] = (*SERVER_CHECKS, *FLEET_CHECKS)
"""Everything after REACH, in the order of the page and of the report."""


def run_doctor(redis_url: str | None, state_dir: Path) -> Report:
    """The report on a server, or on the running ``headway up``; changes nothing.

    Raises UsageError for a URL that names no server, NotReachableError when none was named and nothing runs.
    """
    url, _ = locate(redis_url, state_dir)
    return asyncio.run(_examine(url))


async def _examine(url: str) -> Report:
    try:
        queue, server = RedisQueue(url), Server(url)
    except QueueingError as error:  # its TLS files
        return Report((_reached(fail(str(error))),))
    try:
        async with asyncio.timeout(ANSWER_SECONDS) as limit:
            with contextlib.suppress(ServerUnsuitableError):  # to refuse is to answer: not all may ping
                await server.call("PING")
            limit.reschedule(None)
            facts = await gather(queue, server)
    except TimeoutError:
        said = f"{mask_password(url)} takes connections and answers nothing within {ANSWER_SECONDS:.0f} s"
        return Report((_reached(fail(said)),))
    except QueueingError as error:
        return Report((_reached(fail(str(error))),))
    finally:
        await close_queue(queue)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await server.close()
    return Report((_reached(ok(mask_password(url))), *examined(CHECKS, facts)))


def _reached(finding: Finding) -> Line:
    return Line(REACH.name, finding, REACH.meaning, REACH.remedy)
