"""Which batch gets the next turn: tenants are equals, however many batches each of them has.

The next turn goes to the tenant that has the fewest now; among those, to the one whose last turn began
longest ago; and of its batches to the one that has waited longest. So a tenant with one batch waits behind
one turn of each other tenant at most, and a batch that cannot go on (its model or its quota is away) holds up
no other of its tenant.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final

from headway.queueing.batch_turns import OpenBatch

MOST: Final = 64
"""More than are begun between two looks."""
WAITS_MS: Final = 3_000
"""A batch that waits for longer than two looks found no place that was free."""
SHORTEST_TURN_MS: Final = 10_000
"""A turn that begins anew asks the queue again for what it had in flight: not every second."""


def in_turn(batches: Sequence[OpenBatch], served: Mapping[str, int], most: int = MOST) -> list[OpenBatch]:
    """The first ``most`` that wait, in the order of their turns. ``served``: a tenant's last turn (ms)."""
    running, waiting = _by_tenant(batches)
    last, later = dict(served), count(max(served.values(), default=0) + 1)
    line: list[OpenBatch] = []
    while waiting and len(line) < most:
        tenant = min(waiting, key=lambda name: (running[name], last.get(name, 0), waiting[name][0].since_ms))
        line.append(waiting[tenant].popleft())
        running[tenant] += 1
        last[tenant] = next(later)
        if not waiting[tenant]:
            del waiting[tenant]
    return line


def to_give_way(batches: Sequence[OpenBatch], served: Mapping[str, int], now_ms: int) -> list[OpenBatch]:
    """Running batches whose turn is to end now, since a tenant with fewer turns finds no place.

    One that has two turns fewer gets one at once, one that has one fewer once that turn has lasted a while.
    """
    running, _ = _by_tenant(batches)
    turns = sorted((batch for batch in batches if batch.is_running), key=lambda batch: batch.since_ms)
    ending: list[OpenBatch] = []
    for late in in_turn(batches, served):
        if now_ms - late.since_ms < WAITS_MS:
            continue
        most = max((running[batch.tenant] for batch in turns), default=0)
        turn = next((batch for batch in turns if running[batch.tenant] == most), None)
        if turn is None or running[late.tenant] >= most:
            break
        if running[late.tenant] + 1 == most and now_ms - turn.since_ms < SHORTEST_TURN_MS:
            break
        ending.append(turn)
        turns.remove(turn)
        running[turn.tenant] -= 1
        running[late.tenant] += 1
    return ending


def _by_tenant(batches: Sequence[OpenBatch]) -> tuple[Counter[str], dict[str, deque[OpenBatch]]]:
    """How many turns each tenant has, and its batches that wait, those that waited longest first."""
    running: Counter[str] = Counter()
    waiting: dict[str, deque[OpenBatch]] = {}
    for batch in sorted(batches, key=lambda batch: batch.since_ms):
        if batch.is_running:
            running[batch.tenant] += 1
        else:
            waiting.setdefault(batch.tenant, deque()).append(batch)
    return running, waiting
