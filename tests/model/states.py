"""The values of the model: what the server, the workers, the client and the network hold.

All of them are tuples: hashable, compared by value, cheap to copy with one field changed. Claim tokens are
small numbers; only whether two are equal matters, so ``symmetry.py`` renames them by order of appearance.
"""

from __future__ import annotations

from typing import Final, NamedTuple

NOBODY: Final = 0
"""The claim token of a job that nobody runs."""
END: Final = 0
"""The terminal entry of a token stream; token entries are numbered from 1, their content too."""

ABSENT: Final = "absent"
QUEUED: Final = "queued"
RUNNING: Final = "running"
FINISHED: Final = "finished"


class Job(NamedTuple):
    """What the server holds of one job, and two notes of ours that no function may read."""

    state: str = ABSENT
    places: int = 0
    """Entries in the waiting lists that name it."""
    token: int = NOBODY
    asked: int = NOBODY
    """The name of the claim call that gave it out, so that a repeat of that call is answered alike."""
    has_lease: bool = False
    """False while it runs: the lease has passed, and the next reap takes the job back."""
    attempts: int = 0
    is_cancelled: bool = False
    is_late: bool = False
    """Its deadline has passed."""
    stream: tuple[int, ...] = ()
    """The token stream: content of each entry, END for the terminal one."""
    reason: str = ""
    answer: tuple[int, ...] | None = None
    finisher: int = NOBODY
    """The token that ended it, so that a repeat of that call is answered alike."""
    counter: int = 0
    """Only for a wrong design, in which owners are numbered instead of named."""
    owner: int = NOBODY
    """Ours: the one owner whose words count now; a new name for each time that the job is given out."""
    losses: int = 0
    """Ours: how often it was taken back."""

    @property
    def tokens(self) -> int:
        """How many token entries are published: the last id says so."""
        return max(self.stream, default=0)


class Server(NamedTuple):
    """All that a crash of every other process leaves behind."""

    jobs: tuple[Job, ...]
    last_claims: tuple[tuple[int, tuple[int, ...]] | None, ...]
    """For each worker the name and jobs of its last claim call, to answer a repeat of it alike."""


class Held(NamedTuple):
    """A job in a worker's table."""

    job: int
    token: int
    owner: int
    written: int
    """Tokens known to be published."""
    made: int
    """Tokens that it sent, or began with."""
    ending: tuple[str, int] | None = None
    """Decided: the reason and the tokens to end with, or ``("release", 0)``."""


class Worker(NamedTuple):
    """One worker process. What a killed one knew is gone: the next is a ``Worker()``."""

    held: tuple[Held, ...] = ()
    asked: int = NOBODY
    """Name of a claim call whose reply did not come: the next one asks with it again."""
    news: tuple[tuple[int, int, str], ...] = ()
    """A renewal's reply that is still under way: job, owner and outcome."""


class Call(NamedTuple):
    """A request as the server gets it."""

    function: str
    worker: int = 0
    job: int = 0
    token: int = NOBODY
    owner: int = NOBODY
    before: int = 0
    """How many token entries its worker knows to be published."""
    tokens: tuple[int, ...] = ()
    """Token entries that it brings; of a finish, the whole answer."""
    reason: str = ""


class Given(NamedTuple):
    """A job that a claim answers with."""

    job: int
    token: int
    owner: int
    attempts: int
    tokens: int
    """Published by earlier owners."""


class World(NamedTuple):
    """One moment."""

    server: Server
    workers: tuple[Worker, ...]
    accepted: tuple[bool, ...]
    """For each job, whether its producer was told that it is accepted."""
    cancel_told: tuple[bool, ...]
    """For each job, whether a cancel of it was answered."""
    seen: tuple[tuple[int, ...], ...]
    """For each job, what its reader was given so far."""
    late: Call | None = None
    """A request whose caller gave up, still somewhere in the network."""
    replica: Server | None = None
    """What a lagging replica knows, once it stopped following."""
    failovers: int = 0


class Action(NamedTuple):
    """One step from a moment to the next: who did what, and what became of the call."""

    name: str
    call: Call | None = None
    fate: str = ""
    """``ok``, ``reply lost`` (done, its caller does not know), ``late`` (not done yet, may be still)."""
    outcome: tuple[object, ...] = ()
    """What the server answered, also when nobody heard it."""

    def __str__(self) -> str:
        if self.call is None:
            return f"{self.name}{self.outcome or ''}"
        shown = {name: value for name, value in self.call._asdict().items() if value and name != "function"}
        return f"{self.call.function}{shown} {self.fate} -> {self.outcome}"


class Bounds(NamedTuple):
    """How large a world is explored, and which misfortunes may strike."""

    jobs: int = 1
    workers: int = 2
    tokens: int = 2
    """Length of each answer."""
    max_attempts: int = 2
    room: int = 1
    """Jobs that one claim may take."""
    has_cancel: bool = True
    has_deadline: bool = False
    has_late_calls: bool = True
    has_slow_news: bool = True
    has_drain: bool = True
    has_reader: bool = False
    failovers: int = 0


class Rules(NamedTuple):
    """The protocol as it is; each mutant sets one of these the other way (``mutants.py``)."""

    emit_is_fenced: bool = True
    finish_is_fenced: bool = True
    renew_is_fenced: bool = True
    release_is_fenced: bool = True
    owners_are_named: bool = True
    each_owner_has_its_own_name: bool = True
    ids_must_grow: bool = True
    a_gap_is_refused: bool = True
    submit_looks_for_the_key: bool = True
    a_claim_is_one_call: bool = True
    a_claim_removes_the_entry: bool = True
    a_requeue_clears_the_token: bool = True
    a_requeue_enters_the_queue: bool = True
    a_requeue_looks_for_a_cancel: bool = True
    a_reap_looks_at_the_lease: bool = True
    a_reap_counts: bool = True
    a_reap_gives_up: bool = True
    a_finish_brings_its_last_tokens: bool = True
    a_finish_clears_the_token: bool = True
    a_cancel_ends_a_waiting_job: bool = True
    an_owner_continues_after_the_last_token: bool = True
    a_reader_reads_behind_its_cursor: bool = True
    a_reader_ahead_is_told_the_end: bool = True

    @property
    def has_fences(self) -> bool:
        """Whether a server's state is safe from whoever does not own a job; readers are no danger to it."""
        readers = {"a_reader_reads_behind_its_cursor": True, "a_reader_ahead_is_told_the_end": True}
        return self._replace(**readers) == Rules()
