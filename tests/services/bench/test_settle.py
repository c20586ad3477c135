"""A point begins on a server that is at rest, or says that it was not."""

from __future__ import annotations

import asyncio

from headway.services.bench.settle import Rest


class Server:
    """Answers in no time, or late while it is busy with what was left behind."""

    def __init__(self) -> None:
        self.busy_answers = 0
        self.asked = 0

    async def probe(self) -> None:
        self.asked += 1
        if self.busy_answers:
            self.busy_answers -= 1
            await asyncio.sleep(0.15)


async def test_the_next_point_waits_until_a_short_answer_is_as_quick_as_at_first() -> None:
    server = Server()
    rest = Rest(server.probe)
    assert await rest.settle(10.0)
    server.asked, server.busy_answers = 0, 2
    assert await rest.settle(10.0)
    assert server.asked == 3


async def test_a_server_that_never_rests_is_not_waited_for_longer_than_the_patience() -> None:
    server = Server()
    rest = Rest(server.probe)
    assert await rest.settle(10.0)
    server.busy_answers = 1000
    assert not await rest.settle(0.2)
