"""A worker's right to run a job, and what it says under it: every write is fenced by the claim's token."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headway.queueing.events import EndEvent, JobResult, TokenEvent


@dataclass(frozen=True, slots=True)
class Claim:
    """A worker's right to run a job until its lease ends. ``token`` fences every write made under it."""

    job_id: str
    token: str
    epoch: int
    attempts: int
    body: bytes
    """The job as posted: not yet validated, since raw producers write it too."""
    committed: tuple[TokenEvent, ...]
    """What earlier owners published; the answer continues after the last of these tokens."""
    seed: int
    """Seed of the job's draws: the producer's, or one drawn when the job was accepted."""
    created_ms: int
    deadline_ms: int
    now_ms: int
    """The server's clock at the claim, so that a worker needs no synchronised clock of its own."""
    cancel_reason: str | None


@dataclass(frozen=True, slots=True)
class Emit:
    """New entries of one job under one claim. Cursors grow; a repeat of a committed one is ignored."""

    job_id: str
    token: str
    entries: tuple[TokenEvent, ...]
    entries_before: int = 0
    """How many token entries the worker knows to be in the stream. Where the queue has fewer (a failover lost
    what it had acknowledged), the job is lost to its worker: the next one continues from what is there."""


@dataclass(frozen=True, slots=True)
class Finish:
    """The terminal event and the answer to keep. ``entries`` not yet emitted go in first, atomically."""

    job_id: str
    token: str
    end: EndEvent
    result: JobResult
    entries: tuple[TokenEvent, ...] = ()
    dead_letter: str | None = None
    """A reason to also record the job in the dead-letter stream."""
    served_tokens: float | None = None
    """What this claim's service was worth in tokens, as the engine prices it, without what was computed again
    because another worker was lost. None: the usage's tokens, less those that came from the prefix cache."""
    entries_before: int = 0
    """As in ``Emit``."""

    @property
    def service(self) -> float:
        """Tokens to charge the tenant for."""
        if self.served_tokens is not None:
            return max(0.0, self.served_tokens)
        usage = self.end.usage
        return max(0, usage.prompt_tokens + usage.completion_tokens - usage.cached_tokens)


class Fenced(StrEnum):
    """What became of a fenced call."""

    OK = "ok"
    CANCELLED = "cancelled"
    """Renewed, and the job's owner wants it stopped: finish it with reason ``cancelled``. An emit does not
    tell, since it must be cheap: a worker learns of cancels from ``wait`` and ``renew``."""
    LOST = "lost"
    """Not written: the claim is no longer ours. Drop the job without a word; its new owner speaks for it."""
