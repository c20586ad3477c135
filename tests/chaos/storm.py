"""Lets faults strike at their times; each is over again before the storm is."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress

from tests.chaos.link import TcpLink
from tests.chaos.processes import Place
from tests.chaos.schedule import Fault
from tests.conftest import RedisServer


class Storm:
    """``places`` and ``links`` by the names that faults have for their targets."""

    def __init__(
        self, server: RedisServer, places: Mapping[str, Place], links: Mapping[str, TcpLink]
    ) -> None:
        self._server = server
        self._places = places
        self._links = links
        self._server_is_struck = asyncio.Lock()
        self.struck: list[Fault] = []

    async def rage(self, faults: Sequence[Fault]) -> None:
        """Returns when the last fault is over."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        async with asyncio.TaskGroup() as group:
            for fault in faults:
                await asyncio.sleep(max(0.0, start + fault.at_seconds - loop.time()))
                self.struck.append(fault)
                group.create_task(self._strike(fault), name=str(fault))
        for link in self._links.values():
            link.heal()
        for place in self._places.values():
            place.clock.shift(0.0)

    async def _strike(self, fault: Fault) -> None:
        match fault.kind:
            case "kill worker" | "kill gateway":
                await self._places[fault.target].end(signal.SIGKILL, fault.seconds)
            case "drain worker":
                await self._places[fault.target].end(signal.SIGTERM, fault.seconds)
            case "stop worker":
                await self._places[fault.target].pause(fault.seconds)
            case "shift clock":
                self._places[fault.target].clock.shift(fault.amount)
            case "kill server" | "restart server" | "rewrite log" | "flush functions":
                await self._strike_server(fault)
            case _:
                await self._strike_link(fault, self._links[fault.target])

    async def _strike_server(self, fault: Fault) -> None:
        async with self._server_is_struck:
            match fault.kind:
                case "rewrite log":
                    await self._say("BGREWRITEAOF")
                case "flush functions":
                    await self._say("FUNCTION", "FLUSH")
                case _:
                    down = self._server.kill if fault.kind == "kill server" else self._server.stop
                    await asyncio.to_thread(down)
                    await asyncio.sleep(fault.seconds)
                    await asyncio.to_thread(self._server.start)

    async def _say(self, *words: str) -> None:
        with suppress(OSError):  # it is busy: the fault did not strike
            await asyncio.to_thread(self._server.command, *words)

    async def _strike_link(self, fault: Fault, link: TcpLink) -> None:
        match fault.kind:
            case "cut link":
                link.cut()
                return
            case "delay link":
                link.delay_seconds = fault.amount / 1000
            case "black hole":
                link.swallow()
            case "lose requests":
                link.swallow(replies=False)
            case "lose replies":
                link.swallow(requests=False)
            case _:
                raise ValueError(f"no such fault: {fault}")
        await asyncio.sleep(fault.seconds)
        if fault.kind == "lose replies":
            link.cut()  # what was held back never arrives
        link.heal()
