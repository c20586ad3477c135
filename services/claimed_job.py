"""One job that this worker holds a claim on, from the claim until its end is written or its claim is lost."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from headway.queueing.claims import Claim, Finish
from headway.queueing.events import JobError
from headway.services.answer import Answer
from headway.services.logs import Log
from headway.services.translate import Prepared, job_of


class Phase(StrEnum):
    """Where a claimed job is."""

    PREPARING = "preparing"
    """Being validated and tokenized in a thread."""
    RUNNING = "running"
    """Its requests are in the engine."""
    ENDED = "ended"
    """Nothing of it is in the engine any more; its end waits to be written."""
    STOPPED = "stopped"
    """Taken out of the engine to be handed back: its last tokens, then its release, wait to be written."""


@dataclass(slots=True, eq=False)
class ClaimedJob:
    """Mutable, owned by the I/O loop."""

    claim: Claim
    received_seconds: float
    """Our clock at the claim; ``claim.now_ms`` is the server's at the same moment."""
    log: Log
    phase: Phase = Phase.PREPARING
    answer: Answer = field(default_factory=lambda: Answer(1))
    prepared: Prepared | None = None
    """None while it is being prepared, and if it was refused."""
    open_requests: set[str] = field(default_factory=set[str])
    """What of it is in the engine."""
    error: JobError | None = None
    dead_letter: str | None = None
    is_cancelled: bool = False
    is_handed_back: bool = False
    is_full: bool = False
    """Its token stream is as long as one may be: taken out of the engine, to end with ``length``."""
    first_written_seconds: float | None = None
    last_written_seconds: float | None = None
    waits_since_seconds: float | None = None
    """When the engine brought the oldest token that is not in a write; None: there is none."""
    job_id: str = field(init=False)

    def __post_init__(self) -> None:
        self.job_id = self.claim.job_id

    @property
    def pair(self) -> tuple[str, str]:
        """What renew and release ask for."""
        return self.claim.job_id, self.claim.token

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, once they are known."""
        return 0 if self.prepared is None else self.prepared.prompt_tokens

    @property
    def remaining_steps(self) -> int:
        """Most decode steps until it ends; it may end sooner, by itself."""
        specs = () if self.prepared is None else self.prepared.specs
        remaining = (
            spec.max_tokens - len(self.answer.token_ids(job_of(spec.request_id)[1]))
            for spec in specs
            if spec.request_id in self.open_requests
        )
        return max(remaining, default=0)

    @property
    def age_seconds_at_claim(self) -> float:
        """How long ago the job was accepted when it was claimed, by the server's clock."""
        return max(0.0, (self.claim.now_ms - self.claim.created_ms) / 1000)

    def finish(self) -> Finish:
        """The write that ends it. Call it again for a retry: the same entries, until ``confirm``."""
        entries = self.answer.seal()
        end, result = self.answer.end(self.job_id, self.prompt_tokens, self.error)
        return Finish(
            self.job_id,
            self.claim.token,
            end,
            result,
            entries,
            self.dead_letter,
            entries_before=self.answer.written_entries,
        )
