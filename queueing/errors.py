"""What can go wrong between a producer, the queue and a consumer.

QueueingError
├── InvalidJobError        the job can never be accepted as it is (400)
│   └── InvalidCursorError a resume position that no stream can have (400)
├── UnknownJobError        no job of that id, or its retention has passed (404)
├── IdempotencyConflictError  same key, different body (409)
├── NotAllowedError        the tenant may not use this model or class (403)
├── QuotaExceededError     one of the tenant's limits is used up; carries which, and when to retry (429)
├── InvalidTenantError     a tenant's limits, or their names, that cannot be
├── QueueFullError         the lane's backlog is at its bound; carries when to retry (503)
├── UnreadableRecordError  what the server keeps under a name is no record that this version can read
├── InvalidUrlError        no URL of a queue's server
├── QueueUnavailableError  the server is away, or refuses (503)
│   └── NotNowError        it answered: full, loading, without its replicas; nothing was written
└── ServerUnsuitableError  the server runs, but its version or settings would lose jobs
"""

from __future__ import annotations

from headway.queueing.quota_values import QuotaLimit, QuotaStanding


class QueueingError(Exception):
    """Base of all errors that this package raises on purpose."""


class InvalidJobError(QueueingError):
    """A job that can never be accepted as it is; ``param`` names the field at fault."""

    def __init__(self, message: str, *, param: str | None = None, code: str = "invalid_job") -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class InvalidCursorError(InvalidJobError):
    """A resume cursor that is not ``<tokens>`` or ``<tokens>-<part>``."""


class UnknownJobError(QueueingError):
    """No job of that id exists, or its retention time has passed."""


def unknown_job(job_id: str) -> UnknownJobError:
    """The answer to whoever names a job that is not there (any more)."""
    return UnknownJobError(f"no job {job_id}, or its retention time has passed")


def not_ended(job_id: str) -> InvalidJobError:
    """The answer to whoever wants something of a job that only its end allows."""
    return InvalidJobError(f"{job_id} has not ended yet: cancel it first", code="job_not_ended")


class IdempotencyConflictError(QueueingError):
    """The idempotency key was used before with a different body."""


class NotAllowedError(QueueingError):
    """The job's tenant may not use what it asks for; ``param`` is the job's field."""

    def __init__(self, message: str, *, param: str) -> None:
        super().__init__(message)
        self.param = param


class QuotaExceededError(QueueingError):
    """The tenant's own limit is used up; the message says which, and how an operator raises it."""

    def __init__(
        self, message: str, *, limit: QuotaLimit, retry_after_seconds: float, standing: QuotaStanding
    ) -> None:
        super().__init__(message)
        self.limit = limit
        self.retry_after_seconds = retry_after_seconds
        self.standing = standing


class InvalidTenantError(QueueingError, ValueError):
    """A tenant's name or limits that cannot be; ``field`` names the one at fault, if it is one."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class QueueFullError(QueueingError):
    """As much waits in the lane as may; try again after ``retry_after_seconds``.

    ``bound`` is ``jobs``, ``tokens``, ``wait`` (the predicted one) or ``deadline``: by prediction the job
    would end too late for its own.
    """

    def __init__(self, message: str, *, retry_after_seconds: float, bound: str = "jobs") -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.bound = bound


_FULL = {
    "jobs": "as many jobs wait as may ({jobs})",
    "tokens": "the {jobs} jobs that wait are as much work as may",
    "wait": "a new job would wait longer than the limit, behind {jobs} others",
    "deadline": "by prediction this job would end after its deadline, behind {jobs} others",
}


def queue_full(lane: str, jobs: int, bound: str, retry_after_seconds: float) -> QueueFullError:
    """The refusal of a lane in which enough waits."""
    said = _FULL.get(bound, "it is full").format(jobs=jobs)
    return QueueFullError(
        f"lane {lane} takes nothing more now: {said}", retry_after_seconds=retry_after_seconds, bound=bound
    )


class UnreadableRecordError(QueueingError, ValueError):
    """What is kept under a name is no record that this version can read: asking again changes nothing."""


class InvalidUrlError(QueueingError, ValueError):
    """A URL that names no server; the message says how one is written."""


class QueueUnavailableError(QueueingError):
    """The server cannot take the call now; nothing was written in part."""

    def __init__(self, message: str, *, retry_after_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class NotNowError(QueueUnavailableError):
    """The right server answers, and takes no such call now: full, loading, without its replicas."""


class ServerUnsuitableError(QueueingError):
    """The server's version or settings would lose jobs; the message says what to set."""
