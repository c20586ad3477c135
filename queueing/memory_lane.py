"""One lane of MemoryQueue: its jobs' records, its waiting lists, and the order in which they are served."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from headway.queueing.events import (
    START,
    Cursor,
    EndEvent,
    JobError,
    JobResult,
    JobState,
    StreamEvent,
    TokenEvent,
)
from headway.queueing.messages import Priority
from headway.queueing.protocol import DeadLetter, LaneDepth
from headway.queueing.settings import AGED_EVERY, QueueSettings

DEAD_LETTERS_KEPT: Final = 1000


@dataclass(slots=True, eq=False)
class Record:
    """Everything known of one job. Times are milliseconds of the queue's clock; 0: not yet, or never."""

    job_id: str
    model: str
    tenant: str
    priority: Priority
    body: bytes
    choices: int
    seed: int
    created_ms: int
    deadline_ms: int = 0
    on_disconnect: str = "cancel"
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    state: JobState = JobState.QUEUED
    token: str = ""
    epoch: int = 0
    worker: str | None = None
    attempts: int = 0
    started_ms: int = 0
    finished_ms: int = 0
    lease_ms: int = 0
    cancel_reason: str | None = None
    committed: list[TokenEvent] = field(default_factory=list[TokenEvent])
    end: EndEvent | None = None
    result: JobResult | None = None

    @property
    def cursor(self) -> Cursor:
        """The position of the last committed token entry."""
        return self.committed[-1].cursor if self.committed else START

    @property
    def error(self) -> JobError | None:
        """Why the job failed, if it did."""
        return self.end.error if self.end else None

    def is_owned_by(self, token: str) -> bool:
        """Whether a claim token is the one under which the job runs now."""
        return self.state is JobState.RUNNING and token == self.token

    def after(self, cursor: Cursor, limit: int) -> tuple[StreamEvent, ...]:
        """At most ``limit`` events behind a cursor."""
        first = bisect_right(self.committed, cursor, key=lambda event: event.cursor)
        events: list[StreamEvent] = [*self.committed[first : first + limit]]
        if self.end is not None and self.end.cursor > cursor and len(events) < limit:
            events.append(self.end)
        return tuple(events)


@dataclass(slots=True)
class Lane:
    """The jobs of one model: ``returned`` ones of a band are served before its ``waiting`` ones."""

    records: dict[str, Record] = field(default_factory=dict[str, Record])
    waiting: dict[Priority, deque[Record]] = field(
        default_factory=lambda: {band: deque() for band in Priority}
    )
    returned: dict[Priority, deque[Record]] = field(
        default_factory=lambda: {band: deque() for band in Priority}
    )
    dead: deque[DeadLetter] = field(default_factory=lambda: deque(maxlen=DEAD_LETTERS_KEPT))
    dead_numbers: count[int] = field(default_factory=lambda: count(1))
    since_aged: int = AGED_EVERY

    @property
    def queued_jobs(self) -> int:
        """How many jobs wait, over all bands."""
        return sum(map(len, self.waiting.values())) + sum(map(len, self.returned.values()))

    def take(self, now_ms: int, settings: QueueSettings) -> Record | None:
        """Remove and return the job to be served next."""
        heads = {band: self.returned[band] or self.waiting[band] for band in Priority}
        filled = [band for band in Priority if heads[band]]
        if not filled:
            return None
        band = self._aged(filled, heads, now_ms, settings) or filled[0]
        self.since_aged = 0 if band is not filled[0] else self.since_aged + 1
        return heads[band].popleft()

    def _aged(
        self,
        filled: list[Priority],
        heads: dict[Priority, deque[Record]],
        now_ms: int,
        settings: QueueSettings,
    ) -> Priority | None:
        """The band whose head has waited too long, the oldest first; None while it is not their turn."""
        if self.since_aged < AGED_EVERY - 1:
            return None
        limits = {
            Priority.STANDARD: settings.standard_age_seconds * 1000,
            Priority.BATCH: settings.batch_age_seconds * 1000,
        }
        aged = [
            band for band in filled if band in limits and now_ms - heads[band][0].created_ms > limits[band]
        ]
        return min(aged, key=lambda band: heads[band][0].created_ms, default=None)

    def remove(self, record: Record) -> None:
        """Take a waiting job out of its list."""
        for queue in (self.returned[record.priority], self.waiting[record.priority]):
            if record in queue:
                queue.remove(record)

    def bury(self, record: Record, reason: str) -> None:
        """Add a job to the dead letters."""
        self.dead.append(
            DeadLetter(
                entry_id=f"{next(self.dead_numbers)}-0",
                job_id=record.job_id,
                tenant=record.tenant,
                reason=reason,
                attempts=record.attempts,
                committed_tokens=record.cursor.tokens,
            )
        )

    def depth(self) -> LaneDepth:
        """How many jobs wait, run and were given up."""
        return LaneDepth(
            queued={band: len(self.waiting[band]) + len(self.returned[band]) for band in Priority},
            running=sum(record.state is JobState.RUNNING for record in self.records.values()),
            dead_letters=len(self.dead),
        )
