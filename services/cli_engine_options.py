"""The options that say what computes, in what memory, and in what order: ``up``, ``worker``, ``profile``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.queueing.answer_formats import ReasoningFormat, ToolFormat
from headway.services.cli_options import duration, size
from headway.services.policies import PolicyName
from headway.services.settings import (
    CpuKernels,
    DType,
    KvCacheDType,
    Quantization,
    Speculation,
)

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
        help="Of the weights; auto: the fastest within 1%, on a GPU none; q4, q4-int8: CPU; fp8, w8a8: GPU.",
    ),
]
KvCacheDTypeOption = Annotated[
    KvCacheDType,
    typer.Option(
        "--kv-cache-dtype",
        envvar="HEADWAY_KV_CACHE_DTYPE",
        help="Keys and values; int8, fp8 (GPUs): twice the tokens; auto: on a CPU int8 within 1%, else bf16.",
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
TuneKernels = Annotated[
    bool,
    typer.Option(
        "--tune-kernels/--no-tune-kernels",
        envvar="HEADWAY_TUNE_KERNELS",
        help="On a GPU, at a model's first start: measure a few tiles of each kernel; kept in --cache-dir.",
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
        help="For compiled kernels, packed weights and tiles; default: headway in the user's cache folder.",
        show_default=False,
    ),
]
KvCache = Annotated[
    int | None,
    typer.Option(
        parser=size,
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
ToolParser = Annotated[
    ToolFormat,
    typer.Option(
        "--tool-parser",
        envvar="HEADWAY_TOOL_PARSER",
        help="How the model writes calls of tools; auto: as its chat template shows.",
    ),
]
ReasoningParser = Annotated[
    ReasoningFormat,
    typer.Option(
        "--reasoning-parser",
        envvar="HEADWAY_REASONING_PARSER",
        help="How it marks thoughts; auto: as its chat template shows; none: they are words.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1, envvar="HEADWAY_THREADS", help="CPU threads of each worker; default: all cores, shared."
    ),
]
Policy = Annotated[
    PolicyName,
    typer.Option(
        envvar="HEADWAY_POLICY",
        help="Who goes first inside a worker; static, dynamic and fixed-chunks are for comparison only.",
    ),
]
BatchWindow = Annotated[
    float | None,
    typer.Option(
        parser=duration,
        envvar="HEADWAY_BATCH_WINDOW",
        metavar="DURATION",
        help="Dynamic policy: how long a batch waits to fill up to --max-sequences; default: 50ms.",
    ),
]
AgeLimit = Annotated[
    float | None,
    typer.Option(
        parser=duration,
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
        parser=duration,
        envvar="HEADWAY_PATIENCE",
        metavar="DURATION",
        help="Fair policy: jobs without a deadline are ordered as if due after this; default: 60s.",
    ),
]
HostCache = Annotated[
    int,
    typer.Option(
        parser=size,
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
        help="The same bits whoever else is in the batch; needs native CPU kernels, or a GPU's.",
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
Ttft = Annotated[
    float | None,
    typer.Option(
        parser=duration,
        envvar="HEADWAY_TTFT",
        metavar="DURATION",
        help="Interactive requests should get their first token within this; give --tpot too.",
    ),
]
Tpot = Annotated[
    float | None,
    typer.Option(
        parser=duration,
        envvar="HEADWAY_TPOT",
        metavar="DURATION",
        help="… and each further token within this; steps end in time for it.",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        envvar="HEADWAY_DEVICE", help="auto, cpu, cuda or cuda:N; auto takes a GPU when there is one."
    ),
]
BlockSize = Annotated[int, typer.Option(min=1, envvar="HEADWAY_BLOCK_SIZE", help="Tokens per KV block.")]
MaxModelLen = Annotated[
    int | None,
    typer.Option(
        min=1, envvar="HEADWAY_MAX_MODEL_LEN", help="Most tokens of a prompt and its answer together."
    ),
]
