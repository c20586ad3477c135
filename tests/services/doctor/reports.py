"""What the doctor says of a server, and how a test brings that server into a state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headway.queueing.redis_queue import RedisQueue
from headway.services.doctor import run_doctor
from headway.services.doctor_report import Finding, Report

if TYPE_CHECKING:
    from headway.queueing.protocol import Queue


def doctor(url: str) -> Report:
    return run_doctor(url, Path("/nowhere"))


def finding(report: Report, name: str) -> Finding:
    return next(line.finding for line in report.lines if line.name == name)


def on_queue(url: str, act: Callable[[Queue], Any]) -> None:
    """Do something with a queue at a server."""

    async def do() -> None:
        queue = RedisQueue(url)
        await queue.check_server()
        await act(queue)
        await queue.close()

    asyncio.run(do())
