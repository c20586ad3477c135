"""How each process is set up: frozen values, filled by the command line and ``HEADWAY_…`` variables.

Sizes are bytes, durations seconds. The defaults here are the defaults of the command line.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from headway.queueing.answer_formats import ReasoningFormat, ToolFormat
from headway.services.fair_settings import UNSET, FairSettings
from headway.services.gateway_limits import DEFAULT_LIMITS, GatewayLimits
from headway.services.policies import PolicyName
from headway.services.tenant_weights import TenantWeights

DType = Literal["auto", "float32", "bfloat16"]
LogFormat = Literal["auto", "json", "pretty"]
CpuKernels = Literal["auto", "native", "torch"]
Quantization = Literal["auto", "none", "int8", "q4", "q4-int8", "fp8", "int8-w8a8", "fp8-w8a8"]
KvCacheDType = Literal["auto", "bf16", "int8", "fp8"]

Speculation = Literal["off", "prompt-lookup"]

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/0"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """One worker process: ``run_worker(settings) -> int`` serves one model until SIGTERM drains it."""

    redis_url: str = DEFAULT_REDIS_URL
    model: str = DEFAULT_MODEL
    """A built-in name, a folder, a GGUF file, a hub id, or ``scripted`` (the toy model for drills)."""
    served_name: str | None = None
    """The name under which jobs ask for the model; None: ``model`` itself, or a path's last part."""
    dtype: DType = "auto"
    cpu_kernels: CpuKernels = "auto"
    """On a CPU: native code, compiled at first use, or torch; auto: native where it can run."""
    quantization: Quantization = "auto"
    """Of the weights under the native kernels; auto: the fastest that was measured to cost less than 1 %.

    On a GPU int8 or fp8, with a scale per output, or one of them with activations too (w8a8); auto: none."""
    kv_cache_dtype: KvCacheDType = "auto"
    """Of keys and values, in native or a GPU's kernels; int8 holds nearly twice the tokens, and fp8 as many.

    auto: under the native kernels int8 where it was measured, with the weights' form, to cost less than 1 %;
    else the computation's own."""
    cache_dir: Path | None = None
    """Where compiled kernels, packed weights and chosen tiles are kept; None: nowhere, so torch computes."""
    keeps_weights: bool = True
    """Packed weights stay on disk for the next start, and workers of one machine share them."""
    pins_threads: bool = False
    """Each thread that computes stays on a core of its own."""
    tensor_parallel: int = 1
    """Processes, each with a device of its own, that compute the model together."""
    has_cuda_graphs: bool = True
    """On a GPU: shapes of steps that keep coming are recorded and replayed."""
    tunes_kernels: bool = True
    """On a GPU: which of a few tiles a kernel is fastest with is measured once, and kept in the cache folder.
    Not with ``is_deterministic``: in which order sums are made may not depend on a measurement."""
    tool_format: ToolFormat = "auto"
    """How the model writes calls of tools; auto: as its chat template shows."""
    reasoning_format: ReasoningFormat = "auto"
    """How it sets its thoughts apart; auto: as its chat template shows; none: they are words."""
    worker_id: str = ""
    """Empty: ``w-<host>-<pid>-<random>``."""
    kv_cache_bytes: int | None = None
    """None: sized from the memory that is free when the worker starts."""
    max_sequences: int = 32
    """Requests that one iteration may batch."""
    max_batch_tokens: int = 512
    """New tokens that one iteration may compute, prefill chunks included."""
    speculation: Speculation = "off"
    """prompt-lookup: where an answer repeats its prompt or itself, what may follow is guessed, and checked in
    the same iteration, as long as that makes more tokens per second. The answers stay the same."""
    draft_tokens: int = 8
    """Tokens of one answer that an iteration may guess."""
    threads: int | None = None
    """CPU threads of the runner; None: the cores of this machine shared by its workers."""
    policy: PolicyName = "fair"
    batch_window_seconds: float | None = None
    """How long a dynamic batch waits to fill; None: 50 ms. For --policy dynamic only."""
    fair: FairSettings = UNSET
    has_prefix_cache: bool = True
    """Keep the KV of prompts for others of the same tenant that begin alike."""
    shared_prefixes: tuple[Path, ...] = ()
    """Files with beginnings of prompts (system messages) whose KV all tenants may share."""
    is_overcommitted: bool = True
    """Admit by how long answers usually get, and let somebody give way when that was wrong."""
    host_cache_bytes: int = 0
    """Host memory for the KV of requests that gave way; 0: it is computed again."""
    looks_ahead: bool = False
    """Plan the next step while one runs."""
    is_deterministic: bool = False
    """The same bits of an answer whoever else is in the batch; a worker that cannot promise it refuses."""
    tenant_weights: TenantWeights = ()
    """Shares under the fair policy; 1 for tenants not named."""
    ttft_seconds: float | None = None
    tpot_seconds: float | None = None
    """What interactive requests should not have to wait longer for: the first token, and each one after it.

    Both set: steps end in time for them. None: steps are bounded by ``max_step_seconds`` alone.
    """
    drain_seconds: float = 20.0
    """On SIGTERM, how long running answers may still finish before they are handed back."""
    metrics_port: int | None = None
    """Prometheus metrics of this worker on this port; None: not served, 0: a free port."""
    metrics_host: str = DEFAULT_HOST
    otlp_url: str | None = None
    """Traces go to the OpenTelemetry collector here, over OTLP/HTTP; None: nowhere."""
    log_format: LogFormat = "auto"
    log_level: str = "info"
    block_size: int = 16
    """Tokens per KV block."""
    max_model_len: int | None = None
    """Tokens of prompt and answer together; None: what the model and the KV pool allow."""
    device: str = "auto"
    lease_seconds: float = 15.0
    """A dead worker's jobs move on after this long at the latest; renewed every third of it."""
    isolate_after_attempts: int = 2
    """A job that took this many workers with it runs alone next time, so that it cannot take others along."""
    unacknowledged_tokens: int = 512
    """Per job, generated but not yet known to be in the queue: over it the job is held, the others go on."""
    max_stream_bytes: int = 8 << 20
    """Of one job's token stream; an answer that gets there ends with ``length``. Some 200,000 tokens, or
    8,000 with 20 alternatives each: what a server should hold for one job, and a claim's reply may carry."""
    hung_after_seconds: float = 120.0
    """A step that takes longer is taken for hung: the process ends and its jobs move on."""
    start_timeout_seconds: float = 30.0
    """How long to wait for the queue's server at the start."""
    heartbeat_seconds: float = 1.0

    @property
    def guessed_tokens(self) -> int:
        """Of one answer that an iteration may guess, if any are guessed at all."""
        return self.draft_tokens if self.speculation == "prompt-lookup" else 0


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """One gateway process: the HTTP side, on its own socket or on one that its parent opened."""

    redis_url: str = DEFAULT_REDIS_URL
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    listen_fd: int | None = None
    """An open listening socket handed down by the parent; ``host`` and ``port`` then only describe it."""
    tenants: Path | None = None
    """tenants.toml, applied at the start and whenever it changes; None: limits come from elsewhere."""
    drain_seconds: float = 10.0
    """On SIGTERM, how long open answers may still stream."""
    otlp_url: str | None = None
    """As a worker's."""
    limits: GatewayLimits = DEFAULT_LIMITS
    files: str | None = None
    """Where files lie; None: ``files`` in the state dir, if that can be written."""
    log_format: LogFormat = "auto"
    log_level: str = "info"


@dataclass(frozen=True, slots=True)
class UpSettings:
    """Everything that ``headway up`` starts on one machine."""

    state_dir: Path
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    workers: int = 1
    model: str = DEFAULT_MODEL
    served_name: str | None = None
    dtype: DType = "auto"
    cpu_kernels: CpuKernels = "auto"
    quantization: Quantization = "auto"
    kv_cache_dtype: KvCacheDType = "auto"
    tensor_parallel: int = 1
    has_cuda_graphs: bool = True
    tunes_kernels: bool = True
    keeps_weights: bool = True
    pins_threads: bool = False
    redis_url: str | None = None
    """None: the embedded server, in the state dir."""
    redis_port: int | None = None
    """Opens the embedded server on 127.0.0.1 too; None: its unix socket only."""
    redis_memory_bytes: int | None = None
    """Bound of the embedded server's data set; None: an eighth of the memory, 64 MiB to 2 GiB."""
    kv_cache_bytes: int | None = None
    max_sequences: int = 32
    max_batch_tokens: int = 512
    speculation: Speculation = "off"
    draft_tokens: int = 8
    threads: int | None = None
    policy: PolicyName = "fair"
    batch_window_seconds: float | None = None
    """As a worker's."""
    tenants: Path | None = None
    """tenants.toml, which the gateway applies."""
    looks_ahead: bool = False
    """Every worker plans its next step while one runs."""
    is_deterministic: bool = False
    """Every worker promises the same bits whoever else is in the batch."""
    drain_seconds: float = 10.0
    """How long open answers may still finish at the first Ctrl-C, in the gateway and then in the workers."""
    metrics_port: int | None = None
    """The first worker's; the others count on, and the batch service comes last. None: not served."""
    otlp_url: str | None = None
    limits: GatewayLimits = DEFAULT_LIMITS
    """Of the gateway."""
    files: str | None = None
    """Where files lie; None: ``files`` in the state dir."""
    has_batch: bool | None = None
    """Start the batch service; None: if it is installed."""
    log_level: str = "info"

    def metrics_port_of(self, index: int) -> int | None:
        """That of the worker ``index``, or behind the last one of the batch service; 0 is any free one."""
        return self.metrics_port + index if self.metrics_port else self.metrics_port


def default_state_dir() -> Path:
    """``$XDG_STATE_HOME/headway``, or ``~/.local/state/headway``."""
    base = os.environ.get("XDG_STATE_HOME", "")
    # The XDG specification: a relative path is invalid and to be ignored.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state"
    return root / "headway"


def default_cache_dir() -> Path:
    """``$XDG_CACHE_HOME/headway``, or ``~/.cache/headway``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "headway"


def new_worker_id(pid: int | str | None = None) -> str:
    """``w-<host>-<pid>-<random>``: unique in the fleet, and readable in a log."""
    host = socket.gethostname().split(".")[0][:32] or "host"
    return f"w-{host}-{os.getpid() if pid is None else pid}-{secrets.token_hex(3)}"


def served_name(model: str, given: str | None = None) -> str:
    """The name under which jobs ask for a model: as given, else the model itself or its path's last part."""
    if given:
        return given
    if model.startswith("scripted:"):
        return "scripted"  # what follows are options of the toy model, not part of its name
    path = Path(model).expanduser()
    if model.startswith(("/", "./", "../", "~")) or model.endswith(".gguf") or path.exists():
        return path.resolve().name.removesuffix(".gguf")
    return model


def shown(settings: WorkerSettings | GatewaySettings | UpSettings) -> dict[str, object]:
    """The effective settings for a log line; a password inside a URL is masked."""
    values: dict[str, object] = asdict(settings)
    for name, value in values.items():
        if name in {"redis_url", "otlp_url", "files"} and isinstance(value, str):
            values[name] = mask_password(value)
        elif isinstance(value, Path):
            values[name] = str(value)
    return values


def mask_password(url: str) -> str:
    """The URL with its password replaced, be it ``:password@`` or ``?password=``, for logs and messages."""
    scheme, found, rest = url.partition("://")
    credentials, at, place = rest.rpartition("@")
    if found and at:
        user, colon, _ = credentials.partition(":")
        url = f"{scheme}://{user}{':***' if colon else ''}@{place}"
    return re.sub(r"([?&](?:sentinel_)?password=)[^&]*", r"\1***", url)
