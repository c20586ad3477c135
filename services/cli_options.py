"""The options of the command line, once each: name, ``HEADWAY_…`` variable, help.

Every option of ``up``, ``gateway`` and ``worker`` is also a variable: ``--max-sequences`` is
``HEADWAY_MAX_SEQUENCES``. Of the other commands, those that a script would set once are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer

from headway.services.errors import ServiceError, UsageError
from headway.services.settings import (
    CpuKernels,
    DType,
    KvCacheDType,
    LogFormat,
    PolicyName,
    Quantization,
    Speculation,
)
from headway.services.tenant_weights import parse_weights
from headway.services.units import parse_duration, parse_size

Parsed = TypeVar("Parsed")


def checked(parse: Callable[[str], Parsed]) -> Callable[[str], Parsed]:
    """A parser whose ValueError becomes a usage error (exit code 2)."""

    def parse_option(text: str) -> Parsed:
        # A default comes in as the value that it is.
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # typer passes defaults through
            return text  # type: ignore[unreachable]  # the same
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parse_option


def group(help_text: str) -> typer.Typer:
    """A command with commands of its own."""
    return typer.Typer(help=help_text, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


def ask(question: str) -> None:
    """Return if somebody says yes. Raises UsageError where nobody is there to be asked."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        answer = input()
    except EOFError:
        print(file=sys.stderr)
        raise UsageError(
            "nobody is here to say yes, so nothing was done", hint="the same with --yes"
        ) from None
    if answer.strip().lower() not in {"y", "yes"}:
        raise ServiceError("nothing was done")


_size = checked(parse_size)
weights = checked(parse_weights)
"""For ``Weights``: typer has no options of several pairs."""
_duration = checked(parse_duration)

RedisUrl = Annotated[
    str | None,
    typer.Option(
        "--redis-url",
        envvar="HEADWAY_REDIS_URL",
        metavar="URL",
        help="redis://, rediss:// or unix:// URL of the queue's server.",
    ),
]
StateDirectory = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        envvar="HEADWAY_STATE_DIR",
        metavar="DIR",
        help="Where `headway up` keeps its queue, logs and state.",
        show_default="~/.local/state/headway",
    ),
]
Host = Annotated[str, typer.Option(envvar="HEADWAY_HOST", help="Address to listen on; 0.0.0.0 for all.")]
Port = Annotated[
    int, typer.Option(min=0, max=65535, envvar="HEADWAY_PORT", help="HTTP port; 0 takes a free one.")
]
Workers = Annotated[int, typer.Option(min=1, max=256, envvar="HEADWAY_WORKERS", help="Worker processes.")]
Model = Annotated[
    str,
    typer.Option(
        envvar="HEADWAY_MODEL", help="smollm2-135m, a .gguf file, a model folder, or a hub id (org/name)."
    ),
]
ServedName = Annotated[
    str | None,
    typer.Option(
        envvar="HEADWAY_SERVED_NAME", metavar="NAME", help="Name under which jobs ask for the model."
    ),
]
Dtype = Annotated[DType, typer.Option(envvar="HEADWAY_DTYPE", help="Number format of the computation.")]
CpuKernelsOption = Annotated[
    CpuKernels,
    typer.Option(
        "--cpu-kernels",
        envvar="HEADWAY_CPU_KERNELS",
        help="On a CPU: native code compiled at first use, or torch; auto: native where it can run.",
    ),
]
QuantizationOption = Annotated[
    Quantization,
    typer.Option(
        "--quantization",
        envvar="HEADWAY_QUANTIZATION",
        help="Of the weights; auto: the fastest within 1% of bfloat16, on a GPU none; q4: CPU, fp8: GPU.",
    ),
]
KvCacheDTypeOption = Annotated[
    KvCacheDType,
    typer.Option(
        "--kv-cache-dtype",
        envvar="HEADWAY_KV_CACHE_DTYPE",
        help="Keys and values of the native CPU kernels; int8: nearly twice the tokens; auto: bf16.",
    ),
]
TensorParallel = Annotated[
    int,
    typer.Option(
        "--tensor-parallel",
        min=1,
        max=64,
        envvar="HEADWAY_TENSOR_PARALLEL",
        help="GPUs that compute each worker's model together; it must divide its heads.",
    ),
]
CudaGraphsOption = Annotated[
    bool,
    typer.Option(
        "--cuda-graphs/--no-cuda-graphs",
        envvar="HEADWAY_CUDA_GRAPHS",
        help="On a GPU: record the shapes of steps that keep coming, and replay them.",
    ),
]
KeepWeights = Annotated[
    bool,
    typer.Option(
        "--keep-weights/--no-keep-weights",
        envvar="HEADWAY_KEEP_WEIGHTS",
        help="Keep packed weights in the cache folder: the next start is faster, and workers share them.",
    ),
]
PinThreads = Annotated[
    bool,
    typer.Option(
        "--pin-threads/--no-pin-threads",
        envvar="HEADWAY_PIN_THREADS",
        help="Native CPU kernels: each computing thread on a core of its own.",
    ),
]
CacheDirectory = Annotated[
    Path | None,
    typer.Option(
        "--cache-dir",
        envvar="HEADWAY_CACHE_DIR",
        metavar="FOLDER",
        help="For compiled kernels and packed weights; default: headway in the user's cache folder.",
        show_default=False,
    ),
]
RedisPort = Annotated[
    int | None,
    typer.Option(
        min=1, max=65535, envvar="HEADWAY_REDIS_PORT", help="Open the embedded server on 127.0.0.1:PORT too."
    ),
]
RedisMemory = Annotated[
    int | None,
    typer.Option(
        parser=_size,
        envvar="HEADWAY_REDIS_MEMORY",
        metavar="SIZE",
        help="Bound of the embedded server's data, such as 512MiB.",
    ),
]
KvCache = Annotated[
    int | None,
    typer.Option(
        parser=_size,
        envvar=["HEADWAY_KV_CACHE", "HEADWAY_KV_CACHE_BYTES"],
        metavar="SIZE",
        help="KV cache of each worker, such as 2GiB; default: sized from free memory.",
    ),
]
MaxSequences = Annotated[
    int,
    typer.Option(
        min=1, max=4096, envvar="HEADWAY_MAX_SEQUENCES", help="Requests that one iteration may batch."
    ),
]
MaxBatchTokens = Annotated[
    int,
    typer.Option(min=1, envvar="HEADWAY_MAX_BATCH_TOKENS", help="New tokens that one iteration may compute."),
]
SpeculationOption = Annotated[
    Speculation,
    typer.Option(
        "--speculation",
        envvar="HEADWAY_SPECULATION",
        help="prompt-lookup: guess what repeats prompt or answer, where it pays; answers stay the same.",
    ),
]
DraftTokens = Annotated[
    int,
    typer.Option(
        min=1, max=64, envvar="HEADWAY_DRAFT_TOKENS", help="Tokens of one answer that an iteration may guess."
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1, envvar="HEADWAY_THREADS", help="CPU threads of each worker; default: all cores, shared."
    ),
]
Policy = Annotated[PolicyName, typer.Option(envvar="HEADWAY_POLICY", help="Who goes first inside a worker.")]
AgeLimit = Annotated[
    float | None,
    typer.Option(
        parser=_duration,
        envvar="HEADWAY_AGE_LIMIT",
        metavar="DURATION",
        help="Fair policy: who waited this long in a lower class goes ahead; default: 60s.",
    ),
]
Quantum = Annotated[
    int | None,
    typer.Option(
        min=0,
        envvar="HEADWAY_QUANTUM",
        metavar="TOKENS",
        help="Fair policy: within this service longer cached prefixes go first; default: 1024.",
    ),
]
Patience = Annotated[
    float | None,
    typer.Option(
        parser=_duration,
        envvar="HEADWAY_PATIENCE",
        metavar="DURATION",
        help="Fair policy: jobs without a deadline are ordered as if due after this; default: 60s.",
    ),
]
HostCache = Annotated[
    int,
    typer.Option(
        parser=_size,
        envvar="HEADWAY_HOST_CACHE",
        metavar="SIZE",
        help="Host memory for the KV of requests that gave way; 0: computed again.",
    ),
]
SharedPrefixes = Annotated[
    list[Path] | None,
    typer.Option(
        "--shared-prefix",
        envvar="HEADWAY_SHARED_PREFIXES",
        help="A file with a system message or a prompt's beginning that all tenants may share; repeatable.",
    ),
]
LookAhead = Annotated[
    bool,
    typer.Option(
        "--look-ahead/--no-look-ahead",
        envvar="HEADWAY_LOOK_AHEAD",
        help="Plan the next step while one runs; pays where the device is not the CPU.",
    ),
]
Deterministic = Annotated[
    bool,
    typer.Option(
        "--deterministic/--no-deterministic",
        envvar="HEADWAY_DETERMINISTIC",
        help="The same bits whoever else is in the batch; needs the native CPU kernels.",
    ),
]
Weights = Annotated[
    str,
    typer.Option(
        envvar="HEADWAY_TENANT_WEIGHTS",
        metavar="TENANT=WEIGHT,…",
        help="Shares under the fair policy, such as gold=3,free=0.5; default: 1 each.",
        show_default=False,
    ),
]
Tenants = Annotated[
    Path | None,
    typer.Option(
        envvar="HEADWAY_TENANTS",
        metavar="FILE",
        help="tenants.toml with their limits, applied now and whenever it changes.",
    ),
]
Ttft = Annotated[
    float | None,
    typer.Option(
        parser=_duration,
        envvar="HEADWAY_TTFT",
        metavar="DURATION",
        help="Interactive requests should get their first token within this; give --tpot too.",
    ),
]
Tpot = Annotated[
    float | None,
    typer.Option(
        parser=_duration,
        envvar="HEADWAY_TPOT",
        metavar="DURATION",
        help="… and each further token within this; steps end in time for it.",
    ),
]
JobTtft = Annotated[
    float | None,
    typer.Option(
        parser=_duration,
        metavar="DURATION",
        help="The first token should come within this; give --tpot too. Default: as its class.",
    ),
]
JobTpot = Annotated[
    float | None,
    typer.Option(parser=_duration, metavar="DURATION", help="… and each further token within this."),
]
DrainSeconds = Annotated[
    float,
    typer.Option(
        parser=_duration,
        envvar="HEADWAY_DRAIN_SECONDS",
        metavar="DURATION",
        help="How long open answers may still finish when stopping.",
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        envvar="HEADWAY_METRICS_PORT",
        help="Prometheus port of the worker; with several, the first one's.",
    ),
]
MetricsHost = Annotated[str, typer.Option(envvar="HEADWAY_METRICS_HOST", help="Address of the metrics port.")]
LogFormatOption = Annotated[
    LogFormat, typer.Option("--log-format", envvar="HEADWAY_LOG_FORMAT", help="auto: pretty on a terminal.")
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    typer.Option(envvar="HEADWAY_LOG_LEVEL", help="Least level that is logged."),
]
JsonOutput = Annotated[bool, typer.Option("--json", help="For scripts: JSON, one value a line.")]
OfModel = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="Of this model only; default: all.")
]
Limit = Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="How many to show at most.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="A job id, as `headway submit` prints it.")]
Device = Annotated[
    str,
    typer.Option(
        envvar="HEADWAY_DEVICE", help="auto, cpu, cuda or cuda:N; auto takes a GPU when there is one."
    ),
]
WorkerId = Annotated[
    str,
    typer.Option(
        envvar="HEADWAY_WORKER_ID", metavar="ID", help="Unique in the fleet; default: w-HOST-PID-RANDOM."
    ),
]
BlockSize = Annotated[int, typer.Option(min=1, envvar="HEADWAY_BLOCK_SIZE", help="Tokens per KV block.")]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        min=1, envvar="HEADWAY_MAX_MODEL_LEN", help="Most tokens of a prompt and its answer together."
    ),
]
LeaseSeconds = Annotated[
    float,
    typer.Option(
        parser=_duration,
        envvar="HEADWAY_LEASE_SECONDS",
        metavar="DURATION",
        help="A dead worker's jobs move on after this long at the latest.",
    ),
]
HungAfterSeconds = Annotated[
    float,
    typer.Option(
        parser=_duration,
        envvar="HEADWAY_HUNG_AFTER_SECONDS",
        metavar="DURATION",
        help="A step that takes longer is taken for hung, and the worker ends.",
    ),
]
Deadline = Annotated[
    float | None,
    typer.Option(
        parser=_duration,
        envvar="HEADWAY_DEADLINE",
        metavar="DURATION",
        help="Past it the job never starts, or stops with what it has; such as 30s.",
    ),
]
