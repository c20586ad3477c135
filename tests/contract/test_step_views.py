"""What workers show of their steps: seen in order, once, capped, and only of the workers asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.queueing.step_views import VIEWS_KEPT

if TYPE_CHECKING:
    from tests.contract.conftest import Bench


async def test_nobody_watches_until_somebody_asks_and_again_when_the_time_is_over(bench: Bench) -> None:
    views = bench.queue.step_views
    assert not await views.is_watched()
    await views.watch(0.2)
    assert await views.is_watched()
    await bench.elapse(0.3)
    assert not await views.is_watched()


async def test_views_come_in_order_behind_the_place_that_was_seen_last(bench: Bench) -> None:
    views = bench.queue.step_views
    for text in (b"one", b"two"):
        await views.show("w1", text)
    await views.show("w2", b"other")
    seen = await views.shown({"w1": "", "w2": ""})
    assert [(view.worker_id, view.text) for view in seen] == [
        ("w1", b"one"),
        ("w1", b"two"),
        ("w2", b"other"),
    ]
    assert await views.shown({"w1": seen[1].place, "w2": seen[2].place}) == ()
    await views.show("w1", b"three")
    (later,) = await views.shown({"w1": seen[1].place})
    assert later.text == b"three"
    assert await views.shown({"unknown": ""}) == ()
    assert await views.shown({}) == ()


async def test_a_worker_that_shows_much_keeps_its_newest_views_only(bench: Bench) -> None:
    views = bench.queue.step_views
    for number in range(VIEWS_KEPT + 5):
        await views.show("w1", b"%d" % number)
    kept = [view.text for view in await views.shown({"w1": ""})]
    assert kept == [b"%d" % number for number in range(5, VIEWS_KEPT + 5)]
