"""The line of batches that wait for a turn, as one process knows it: looked at once a second at most."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from headway.queueing.batch_store import BatchStore
from headway.queueing.batch_turns import OpenBatch
from headway.services.batch.turn_order import in_turn
from headway.services.batch.turn_order import to_give_way as ending_for_others

FRESH_SECONDS: Final = 1.0


class TurnLine:
    """Hands out the batches in the order of their turns. May be used by several threads."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: monotonic seconds."""
        self._clock = clock
        self._looked_at = -FRESH_SECONDS
        self._tenants: dict[str, str] = {}
        self._line: deque[OpenBatch] = deque()
        self._ending: tuple[OpenBatch, ...] = ()

    async def look(self, store: BatchStore) -> int:
        """How many wait for a turn, as far as that many could begin soon."""
        if self._clock() - self._looked_at >= FRESH_SECONDS:
            await self._read(store)
        return len(self._line)

    async def next(self, store: BatchStore) -> str | None:
        """The batch whose turn it is, noted as one that had it; None: none waits."""
        await self.look(store)
        while True:
            try:
                batch = self._line.popleft()
            except IndexError:
                return None
            if not await store.has_turn(f"run:{batch.batch_id}"):
                await store.turns.begin(batch, await store.now_ms())
                return batch.batch_id

    def to_give_way(self) -> tuple[str, ...]:
        """Batches whose turn is to end for others, each told once."""
        told, self._ending = self._ending, ()
        return tuple(batch.batch_id for batch in told)

    async def _read(self, store: BatchStore) -> None:
        self._looked_at = self._clock()
        batches = await store.turns.open(self._tenants)
        served = await store.turns.served()
        self._tenants = {batch.batch_id: batch.tenant for batch in batches}
        self._ending = tuple(ending_for_others(batches, served, await store.now_ms()))
        self._line = deque(in_turn(batches, served))
        await store.turns.forget(tuple(served.keys() - set(self._tenants.values())))
