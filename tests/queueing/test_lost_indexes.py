"""Whichever of a lane's shared keys are deleted, waiting jobs are served, and running ones end."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import pytest
import redis
from tests.queueing.conftest import MODEL, TAG, stop

from headway.queueing.claims import Claim, Fenced
from headway.queueing.events import JobState
from headway.queueing.settings import QueueSettings

if TYPE_CHECKING:
    from tests.queueing.conftest import OpenQueue

KINDS = ("lane", "turn", "seen", "q", "back", "due", "lease", "tenant", "wake")
SUBSETS = [chosen for count in (1, 2, 8, 9) for chosen in combinations(KINDS, count)]
"""All 511 hold; these take a tenth of the time."""
QUICK = QueueSettings(lease_seconds=0.05)


def delete(raw: redis.Redis, kinds: tuple[str, ...]) -> None:
    for kind in kinds:
        for key in raw.keys(f"{kind}:{TAG}*"):
            raw.delete(key)


async def test_after_any_loss_every_waiting_job_is_served(each_redis_url: str, open_queue: OpenQueue) -> None:
    queue = open_queue(each_redis_url)
    with redis.Redis.from_url(each_redis_url) as raw:
        for number, chosen in enumerate(SUBSETS):
            names = [f"{number}-{n}" for n in range(4)]
            for name in names:
                band = ("interactive", "standard", "batch", "standard")[int(name[-1])]
                more = ',"deadline_seconds":600' if name.endswith("2") else ""
                body = f'{{"model":"tiny","prompt":"x","tenant":"t{name}","priority":"{band}"{more}}}'
                await queue.submit_body(MODEL, body.encode(), key=name)
            (first,) = await queue.claim(MODEL, "w", 1)
            await queue.release([(first.job_id, first.token)])
            delete(raw, chosen)
            claims: list[Claim] = []
            for _ in range(3):
                claims += await queue.claim(MODEL, "w", 9)
                await queue.reap(MODEL)
            assert sorted(claim.job_id for claim in claims) == [f"tiny:0:{name}" for name in names], chosen
            await queue.finish([stop(claim, 0) for claim in claims])
            depth = await queue.depth(MODEL)
            assert (sum(depth.queued.values()), depth.running) == (0, 0), chosen


@pytest.mark.parametrize("kinds", [("lease",), ("lease", "lane"), ("lease", "lane", "turn", "seen")])
async def test_a_dead_workers_job_whose_lease_was_deleted_goes_to_another(
    each_redis_url: str, open_queue: OpenQueue, kinds: tuple[str, ...]
) -> None:
    queue = open_queue(each_redis_url, QUICK)
    await queue.submit_body(MODEL, b'{"model":"tiny","prompt":"x"}', key="k")
    await queue.claim(MODEL, "dead", 1)
    with redis.Redis.from_url(each_redis_url) as raw:
        delete(raw, kinds)
        await queue.reap(MODEL)
        assert raw.zscore(f"lease:{TAG}", "k") is not None, "it has a lease again"
        raw.zadd(f"lease:{TAG}", {"k": 0})
    assert (await queue.reap(MODEL)).requeued == ("tiny:0:k",)
    (claim,) = await queue.claim(MODEL, "w", 1)
    assert claim.attempts == 1


async def test_a_living_workers_renewal_brings_a_deleted_lease_back(
    each_redis_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(each_redis_url)
    await queue.submit_body(MODEL, b'{"model":"tiny","prompt":"x"}', key="k")
    (claim,) = await queue.claim(MODEL, "w", 1)
    with redis.Redis.from_url(each_redis_url) as raw:
        delete(raw, ("lease",))
        assert await queue.renew([(claim.job_id, claim.token)]) == (Fenced.OK,)
        assert raw.zscore(f"lease:{TAG}", "k") is not None
    assert await queue.finish([stop(claim, 0)]) == (Fenced.OK,)
    assert (await queue.status(claim.job_id)).state is JobState.FINISHED


async def test_a_lane_whose_books_are_right_is_not_searched(
    each_redis_url: str, open_queue: OpenQueue
) -> None:
    queue = open_queue(each_redis_url)
    await queue.submit_body(MODEL, b'{"model":"tiny","prompt":"x"}', key="k")
    await queue.reap(MODEL)  # a new lane may be one whose books were deleted
    with redis.Redis.from_url(each_redis_url, protocol=2) as raw:
        before = raw.info("commandstats")["cmdstat_scan"]["calls"]
        (claim,) = await queue.claim(MODEL, "w", 1)
        await queue.reap(MODEL)
        await queue.finish([stop(claim, 0)])
        await queue.reap(MODEL)
        assert raw.hget(f"lane:{TAG}", "lost") == b"0"
        assert raw.info("commandstats")["cmdstat_scan"]["calls"] == before
