"""What ``headway bench`` is asked; light to import: the command line reads its defaults from here."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from headway.services.settings import mask_password

Arrivals = Literal["poisson", "burst", "on-off", "trace"]
Api = Literal["chat", "completions"]


@dataclass(frozen=True, slots=True)
class Slos:
    """What a request has to meet to count as good, in seconds; None: no limit."""

    ttft_seconds: float | None = 1.0
    tpot_seconds: float | None = 0.1
    e2e_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What is measured, and how. Durations are seconds, rates requests per second."""

    url: str = "http://127.0.0.1:8000"
    """``http(s)://`` of an OpenAI-compatible server, or the URL of Headway's own queue server."""
    model: str | None = None
    """None: the one that is served."""
    api: Api = "chat"
    api_key: str | None = field(default=None, repr=False)
    tenant_keys: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Keys of single tenants, in place of ``api_key``."""
    rates: tuple[float, ...] = (1.0,)
    """One point each, open loop: nobody waits for an answer before the next request comes."""
    concurrencies: tuple[int, ...] = ()
    """One point each, closed loop: as many clients, each asking again when its answer has ended."""
    arrivals: Arrivals | None = None
    """None: the trace as recorded if there is one, else Poisson."""
    burstiness: float = 4.0
    on_seconds: float = 5.0
    off_seconds: float = 5.0
    trace: Path | None = None
    rate_scales: tuple[float, ...] = ()
    """One point each, in place of ``rates``: the trace so many times as fast as it was recorded."""
    length_scale: float | None = 1.0
    """Of a trace's lengths; None: so that its longest request fits the model's context."""
    context_tokens: int | None = None
    """Prompt and answer at most; None: as the server says."""
    prompt_tokens: int = 256
    answer_tokens: int = 64
    length_spread: float = 0.0
    """Of log-normal lengths around these medians; 0: all alike."""
    shared_prefix_tokens: int = 0
    """With which every prompt begins, where no tenants are given."""
    deadline_seconds: float | None = None
    """Of every request, where no tenants are given; None: it brings none."""
    texts: tuple[Path, ...] = ()
    """Files whose text the prompts are cut from; none: random words."""
    tokenizer: Path | None = None
    """A tokenizer.json, or the folder or GGUF file that has one."""
    tenants: Path | None = None
    cancel_ratio: float = 0.0
    slow_ratio: float = 0.0
    slow_bytes_per_second: float = 512.0
    temperature: float = 0.0
    ignores_eos: bool = True
    """Every answer has exactly its length, where the server can do that."""
    counts_events: bool = False
    """Take an event with text for a token where the server tells no usage."""
    warmup: float = 5.0
    duration: float = 30.0
    drain: float = 60.0
    """How long answers may still come after the last request of a point."""
    client_processes: int = 1
    """Each is one core at most; requests are spread over them."""
    max_open: int = 4096
    """Requests that are open at once; one more is not sent, and counted."""
    seed: int = 0
    slos: Slos = Slos()
    attainment: float = 0.9
    """Share of requests within the limits up to which a rate counts as served."""
    finds_knee: bool = False
    most_points: int = 12
    max_lateness: float = 0.02
    """Above this P99 of the client's own lateness or of its loop's lag, a point is invalid."""
    max_client_cpu: float = 0.8
    """Of one core."""
    worker_urls: tuple[str, ...] = ()
    """Metrics ports of Headway's workers: their settings and steps become part of the result."""

    @property
    def is_native(self) -> bool:
        """Whether jobs go straight into Headway's queue."""
        return not self.url.startswith(("http://", "https://"))

    def shown(self) -> dict[str, Any]:
        """Every knob for the result, without keys and passwords."""
        values = asdict(self)
        del values["api_key"], values["tenant_keys"]
        values["url"] = mask_password(self.url)
        return {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]  # pyright: ignore[reportUnknownVariableType]  # of any values
    return value
