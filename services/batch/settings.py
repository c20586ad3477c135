"""How the batch service is set up. Sizes are bytes, durations seconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headway.services.settings import DEFAULT_HOST, DEFAULT_REDIS_URL, LogFormat, default_state_dir


@dataclass(frozen=True, slots=True)
class StepSettings:
    """How one batch is worked through."""

    most_in_flight: int = 256
    """Lines of one batch in the queue at a time. They wait in the lowest class, in nobody's way; more would
    only fill the queue's memory."""
    part_lines: int = 64
    """Lines whose results are committed together; what a killed worker has to collect again at most."""
    open_parts: int = 16
    """A line that takes long holds up its part; no more lines than this many parts have are ahead of it."""
    slice_seconds: float = 120.0
    """After this long another batch gets its turn."""
    turn_seconds: float = 6.0
    """A killed worker's batches are taken over after this long at the latest."""
    shortest_look_seconds: float = 0.02
    longest_look_seconds: float = 1.0
    """Between two looks at the jobs; shorter as long as there are answers."""
    cancel_seconds: float = 30.0
    """How long workers get to let go of a batch's jobs when it ends."""
    file_keep_seconds: float = 30 * 86_400.0
    """How long results are kept whose producer did not say, and the records of batches that have ended."""


def default_files() -> str:
    """``files`` in the state directory: where gateway and batch service of one machine meet."""
    return str(default_state_dir() / "files")


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """One process of the batch service."""

    redis_url: str = DEFAULT_REDIS_URL
    broker_url: str | None = None
    """Celery's own; None: the queue's server."""
    files: str = ""
    """Where files lie; empty: ``files`` in the state directory."""
    concurrency: int = 4
    """Batches worked on at a time."""
    allows_private_webhooks: bool = False
    heartbeat_file: Path | None = None
    """Touched every other second while the process takes tasks, for whoever watches it; None: no file."""
    metrics_port: int | None = None
    """Prometheus metrics of this process on this port; None: not served, 0: a free port."""
    metrics_host: str = DEFAULT_HOST
    ready_fd: int | None = None
    """Told once it serves, and closed; None: nobody asked."""
    log_format: LogFormat = "auto"
    log_level: str = "info"
    step: StepSettings = StepSettings()
