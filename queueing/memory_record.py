"""One job of MemoryQueue: everything that is known of it."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, field

from headway.queueing.events import (
    START,
    Cursor,
    EndEvent,
    JobError,
    JobResult,
    JobState,
    JobStatus,
    PastClaim,
    StreamEvent,
    TokenEvent,
)
from headway.queueing.messages import Priority


@dataclass(slots=True, eq=False)
class Record:
    """Times are milliseconds of the queue's clock; 0: not yet, or never. Owned by the store."""

    job_id: str
    model: str
    tenant: str
    priority: Priority
    body: bytes
    cost: int
    """Estimated tokens."""
    choices: int
    seed: int
    created_ms: int
    place: float
    """Its order in its tenant's backlog: the deadline, or until when it is patient."""
    reserved: str = ""
    retry_of: str | None = None
    deadline_ms: int = 0
    on_disconnect: str = "cancel"
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    state: JobState = JobState.QUEUED
    token: str = ""
    epoch: int = 0
    worker: str | None = None
    attempts: int = 0
    started_ms: int = 0
    claimed_ms: int = 0
    first_token_ms: int = 0
    finished_ms: int = 0
    lease_ms: int = 0
    charged: float = 0
    """Tokens that its tenant was charged for the present claim."""
    paid: float = 0
    """Tokens that its tenant was charged for past claims."""
    history: list[PastClaim] = field(default_factory=list[PastClaim])
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

    @property
    def prompt_estimate(self) -> int:
        """Rough tokens of the prompt."""
        return math.ceil(len(self.body) / 4)

    @property
    def service_so_far(self) -> float:
        """Tokens of prompt and answer that nobody has paid for yet."""
        return max(0, self.prompt_estimate + self.cursor.tokens - self.paid)

    def is_owned_by(self, token: str) -> bool:
        """Whether a claim token is the one under which the job runs now."""
        return self.state is JobState.RUNNING and token == self.token

    def after(self, cursor: Cursor, limit: int) -> tuple[StreamEvent, ...]:
        """At most ``limit`` events behind a cursor."""
        first = bisect_right(self.committed, cursor, key=lambda event: event.cursor)
        events: list[StreamEvent] = [*self.committed[first : first + limit]]
        # An end before the cursor: elsewhere a server may lose entries that it had given out.
        if self.end is not None and self.end.cursor != cursor and len(events) < limit:
            events.append(self.end)
        return tuple(events)

    def status(self) -> JobStatus:
        """What ``Queue.status`` says of it."""
        return JobStatus(
            job_id=self.job_id,
            model=self.model,
            tenant=self.tenant,
            priority=self.priority,
            state=self.state,
            committed_tokens=self.end.cursor.tokens if self.end else self.cursor.tokens,
            attempts=self.attempts,
            worker=self.worker,
            created_ms=self.created_ms,
            started_ms=self.started_ms,
            finished_ms=self.finished_ms,
            deadline_ms=self.deadline_ms,
            cancel_reason=self.cancel_reason,
            reason=self.end.reason if self.end else None,
            error=self.error,
            on_disconnect=self.on_disconnect,
            metadata=self.metadata,
            claimed_ms=self.claimed_ms,
            first_token_ms=self.first_token_ms,
            history=tuple(self.history),
            retry_of=self.retry_of,
            reserved=self.reserved,
        )
