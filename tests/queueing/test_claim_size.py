"""One claim never brings more than a server and a worker can hold at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.queueing.conftest import BODY, MODEL

from headway.queueing.claims import Emit
from headway.queueing.events import Cursor, TokenEvent

if TYPE_CHECKING:
    from tests.queueing.conftest import OpenQueue

MIB = 1 << 20


async def test_large_bodies_come_in_several_claims(redis_url: str, open_queue: OpenQueue) -> None:
    queue = open_queue(redis_url)
    body = BODY.replace(b'"x"', b'"' + b"x" * (MIB - 100) + b'"')
    for n in range(10):
        await queue.submit_body(MODEL, body, key=f"k{n}")
    assert [len(await queue.claim(MODEL, f"w{n}", 99)) for n in range(2)] == [9, 1]


async def test_long_answers_to_be_resumed_come_in_several_claims(
    redis_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(redis_url)
    for n in range(3):
        await queue.submit_body(MODEL, BODY, key=f"k{n}")
    claims = await queue.claim(MODEL, "w", 99)
    for claim in claims:
        entries = tuple(TokenEvent(Cursor(at), 0, "y" * MIB, (at,)) for at in range(1, 6))
        await queue.emit([Emit(claim.job_id, claim.token, entries)])
    await queue.release([(claim.job_id, claim.token) for claim in claims])
    again = [await queue.claim(MODEL, f"w{n}", 99) for n in range(2)]
    assert [len(each) for each in again] == [2, 1]
    assert all(len(claim.committed) == 5 for each in again for claim in each)
