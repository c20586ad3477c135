"""What an operator can set on the gateway; services/ fills it, nothing here reads the environment."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Limits and waiting times of one gateway process; all of them must be above zero."""

    version: str = "0.0.0"
    """Shown at ``/`` and in ``system_fingerprint``."""
    max_body_bytes: int = 4 << 20
    """Largest request body. A job may hold 1 MiB of UTF-8, and JSON's escapes make that up to three times."""
    body_seconds: float = 60.0
    """How long a request's body may take to arrive."""
    max_file_bytes: int = 200_000_000
    """Largest uploaded file: what a batch may have."""
    upload_seconds: float = 3600.0
    """How long an upload may take: 200 MB through half a megabit per second."""
    file_keep_seconds: float = 30 * 86_400.0
    """How long a file is kept whose producer did not say."""
    max_prompts: int = 64
    """Prompts in one completions request: each becomes a job of its own."""
    first_event_seconds: float = 1.0
    """How long a stream's status waits for the job's first event, so that a refusal is a real 4xx."""
    ping_seconds: float = 10.0
    """Silence after which a stream carries a comment: proxies cut idle connections at 30 to 60 s."""
    read_wait_seconds: float = 2.0
    """Longest blocking read of the queue (its client library's socket timeout is 5 s)."""
    answer_pause_seconds: float = 0.02
    """Pause between the reads of an answer that is not streamed: it needs the end, not each token."""
    outage_seconds: float = 30.0
    """How long a stream outlives a queue that cannot be reached."""
    cancel_seconds: float = 5.0
    """How long the cancel of a departed client's jobs is retried."""
    models_ttl_seconds: float = 2.0
    """Age at which the list of models and workers is read again."""
    hung_after_seconds: float = 60.0
    """A worker whose engine has work and completes no step for this long is hung."""
    probe_seconds: float = 2.0
    """Longest time that a health check or a scrape waits for the queue."""
    max_requests_per_tenant: int | None = None
    """Requests of one tenant that this process serves at once, open streams included; None: any number."""
    cors_origins: tuple[str, ...] = ()
    """Origins of web pages whose scripts may call; ``*``: any. None by default."""
    admin_key_digest: str = ""
    """SHA-256 (hex) of an administrator's key that is no key of the queue's; empty: there is none."""
    metric_tenants: int = 50
    """Tenants with a label value of their own; later ones are counted as ``other``."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, int | float) and not value > 0:
                raise ValueError(f"{item.name} must be above zero, not {value!r}")
