"""A client that was the bottleneck says so, whatever it was short of."""

from __future__ import annotations

import asyncio
import time

import pytest

from headway.services.bench.client_watch import ClientLoad, ClientWatch, complaints

QUIET = ClientLoad(cpu_share=0.05, lag_p50=0.0, lag_p99=0.001, lag_max=0.002, seconds=30.0)


def test_a_client_that_kept_up_has_nothing_to_say() -> None:
    assert complaints([0.001] * 100, QUIET, max_lateness=0.02, max_cpu=0.8) == []


@pytest.mark.parametrize(
    ("late", "load", "unsent", "words"),
    [
        ([0.0] * 90 + [0.5] * 10, QUIET, (), "sent late: P99 500.0 ms"),
        ([], ClientLoad(0.05, 0.0, 0.3, 0.4, 30.0), (), "event loop lagged: P99 300.0 ms"),
        ([], ClientLoad(0.97, 0.0, 0.0, 0.0, 30.0), (), "97 % of a core"),
        ([], QUIET, ("Too many open files",) * 3, "3 requests were not sent: Too many open files"),
    ],
)
def test_each_shortage_is_named(
    late: list[float], load: ClientLoad, unsent: tuple[str, ...], words: str
) -> None:
    (told,) = complaints(late, load, max_lateness=0.02, max_cpu=0.8, unsent=unsent)
    assert words in told


async def test_a_loop_that_is_held_up_is_seen_to_lag() -> None:
    watch = ClientWatch()
    watch.start()
    await asyncio.sleep(0.02)
    time.sleep(0.1)  # noqa: ASYNC251 - what a client must not do
    await asyncio.sleep(0.02)
    assert watch.stop().lag_max >= 0.08
