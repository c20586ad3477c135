"""The storm in its short edition, and proofs that a storm is what it says and its verdict not blind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.chaos.run import Options, run
from tests.chaos.schedule import WEIGHTS, Fault, draw
from tests.chaos.verdict import of_outcome
from tests.chaos.workload import Order, Outcome, Reading, draw_orders

SHORT = Options(seed=4, seconds=60.0, jobs=240, every=1.0)


@pytest.mark.timeout(400)
async def test_a_minute_of_storm_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """Another seed each time would find more; ``make chaos`` takes one, and twenty minutes."""
    report = await run(SHORT, folder=tmp_path)
    print(report)
    assert not report.wrong, str(report)


def test_a_seed_is_a_schedule() -> None:
    def drawn(seed: int) -> tuple[Fault, ...]:
        return draw(seed, 600.0, 3, lease_seconds=1.5, every=1.0)

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert {fault.kind for fault in drawn(1)} == set(WEIGHTS)
    assert {fault.kind for fault in draw(SHORT.seed, 60.0, 3, lease_seconds=1.5, every=1.0)} == set(WEIGHTS)
    assert draw_orders(1, 50, 10.0) == draw_orders(1, 50, 10.0)


def seen(order: Order, **changes: object) -> list[str]:
    """The verdict on a reading without fault but for these changes."""
    text = order.text
    cursors = [(at, 0, 1) for at in range(1, len(text) + 1)]
    reading = Reading("redis", cursors, list(text), [("length", "")])
    for name, value in changes.items():
        setattr(reading, name, value)
    return of_outcome(Outcome(order, "scripted:0:order", readings=[reading]))


def test_the_verdict_notices() -> None:
    """A run that repeats, drops or changes a token, or ends twice or not at all, is not passed."""
    (order,) = draw_orders(1, 1, 1.0)
    order = replace(
        order, job=order.job.model_copy(update={"deadline_seconds": None}), cancel_after_seconds=None
    )
    letters = list(order.text)
    cursors = [(at, 0, 1) for at in range(1, len(letters) + 1)]
    assert seen(order) == []
    assert seen(order, cursors=[*cursors[:3], *cursors[2:]]), "a token twice"
    assert seen(order, cursors=[*cursors[:3], *cursors[4:]]), "a token missing"
    assert seen(order, texts=letters[:-1]), "text missing"
    assert seen(order, texts=[*letters[:-1], "?"]), "another text"
    assert seen(order, ends=[]), "no end"
    assert seen(order, ends=[("length", "")] * 2), "two ends"
    assert seen(order, after_end=1), "something after the end"
    assert seen(order, ends=[("error", "internal_error")]), "a failure"
    assert seen(order, ends=[("cancelled", "")]), "cancelled by nobody"
    assert not seen(replace(order, cancel_after_seconds=0.0), ends=[("cancelled", "")])
    assert of_outcome(Outcome(order)), "never accepted"
