"""The queue's limits and times, each with the reason for its default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

AGED_EVERY: Final = 4
"""Of this many claims, one may be an aged job that goes ahead of better bands.

An aged job moves on after at most three others, yet a backlog of aged batch jobs cannot take the place of
interactive ones: ageing alone would turn the bands upside down as soon as the whole backlog is old.
"""


READ_LIMIT: Final = 256
"""Most events of one read: bounds the memory that a reader far behind takes at a time."""


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """What a deployment may change; every process of a fleet should use the same values."""

    lease_seconds: float = 15.0
    """Time after its worker's last renewal at which a job is taken back. Renewed every third of it, so two
    renewals may fail; a killed worker's answer stands still no longer than this."""

    max_attempts: int = 3
    """Crashes after which a job is given up: a job that kills its worker must not kill the fleet."""

    max_queued_jobs: int = 100_000
    """Per lane, to bound memory: about 0.7 kB each beside the body. One tenant may fill nine tenths of it."""

    max_queued_tokens: int = 100_000_000
    """Per lane: estimated tokens of all that waits. It bounds the bodies too, at 4 bytes per token."""

    max_wait_seconds: float = 3600.0
    """Predicted wait of a new job beyond which a refusal now is kinder. Bounds nothing until the lane's
    workers have shown what they can do."""

    patience_seconds: float = 600.0
    """Inside a tenant the earliest deadline goes first; a job without one is placed as if it had this long.
    So it overtakes jobs with a later deadline, and waits behind those in a hurry for a while only."""

    standard_age_seconds: float = 30.0
    """Wait after which a standard job goes ahead of interactive ones: someone may still be watching it."""

    batch_age_seconds: float = 120.0
    """The same for batch jobs, which nobody watches."""

    stream_retention_seconds: float = 300.0
    """Token streams cost at least 4 kB each; five minutes is enough for a client to reconnect."""

    record_retention_seconds: float = 3600.0
    """Answer, body and record after the end, for clients that come back later."""

    idempotency_seconds: float = 86_400.0
    """How long an idempotency key names its job: a day, as payment interfaces do."""

    reservation_seconds: float = 30.0
    """How long a reservation waits for its job, and is kept at a time later. What a producer reserved that
    died before it posted counts against its tenant no longer than this."""

    poll_seconds: float = 0.25
    """How late a reader sees tokens when a wake-up hint was lost: one of up to 256 that wait in its process,
    with more of them as many times later. When no hints come at all, everybody looks this often."""

    watch_seconds: float = 1.0
    """How often waiting readers look for expired leases and passed deadlines in their lanes."""

    def __post_init__(self) -> None:
        """Refuse values under which jobs would be lost or never end."""
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be more than 0")


DEFAULTS: Final = QueueSettings()
