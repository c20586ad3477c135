"""The ``headway`` command. Commands import what they need when they run, so that all of them start fast.

Exit codes: 0 done, 2 wrong usage, 3 not reachable, 1 anything else.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from headway.services import cli_batch_options as batch_options
from headway.services import cli_engine_options as engine_options
from headway.services import cli_gateway_options as gateway_options
from headway.services import cli_options as options
from headway.services.cli_batch import add_batch_commands
from headway.services.cli_bench import add_bench_command
from headway.services.cli_calibrate import add_calibrate_command
from headway.services.cli_dlq import add_dlq_commands
from headway.services.cli_doctor import add_doctor_command
from headway.services.cli_fleet import add_fleet_commands
from headway.services.cli_jobs import add_job_commands
from headway.services.cli_profile import add_profile_command
from headway.services.cli_simulate import add_simulate_command
from headway.services.cli_tenants import add_tenant_commands
from headway.services.cli_trace import add_trace_command
from headway.services.cli_tune import add_tune_command
from headway.services.errors import ServiceError, StartError
from headway.services.fair_settings import FairSettings
from headway.services.gateway_limits import DEFAULT_LIMITS, GatewayLimits
from headway.services.settings import (
    GatewaySettings,
    UpSettings,
    WorkerSettings,
    default_cache_dir,
    default_state_dir,
)
from headway.services.terminal import show_failure

_UP = UpSettings(state_dir=Path())
_GATEWAY = GatewaySettings()
_WORKER = WorkerSettings()

app = typer.Typer(
    name="headway",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from headway import __version__

        print(f"headway {__version__}")
        raise typer.Exit


@app.callback()
def headway(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Message-queue-driven LLM inference: fair, durable, every token through Redis."""


@app.command()
def up(
    *,
    host: options.Host = _UP.host,
    port: options.Port = _UP.port,
    workers: options.Workers = _UP.workers,
    model: options.Model = _UP.model,
    served_name: options.ServedName = None,
    dtype: engine_options.Dtype = _UP.dtype,
    cpu_kernels: engine_options.CpuKernelsOption = _UP.cpu_kernels,
    quantization: engine_options.QuantizationOption = _UP.quantization,
    tensor_parallel: engine_options.TensorParallel = _UP.tensor_parallel,
    cuda_graphs: engine_options.CudaGraphsOption = _UP.has_cuda_graphs,
    kv_cache_dtype: engine_options.KvCacheDTypeOption = _UP.kv_cache_dtype,
    keep_weights: engine_options.KeepWeights = _UP.keeps_weights,
    pin_threads: engine_options.PinThreads = _UP.pins_threads,
    state_dir: options.StateDirectory = None,
    redis_url: options.RedisUrl = None,
    redis_port: options.RedisPort = None,
    redis_memory: options.RedisMemory = None,
    kv_cache: engine_options.KvCache = None,
    max_sequences: engine_options.MaxSequences = _UP.max_sequences,
    max_batch_tokens: engine_options.MaxBatchTokens = _UP.max_batch_tokens,
    speculation: engine_options.SpeculationOption = _UP.speculation,
    draft_tokens: engine_options.DraftTokens = _UP.draft_tokens,
    threads: engine_options.Threads = None,
    policy: engine_options.Policy = _UP.policy,
    batch_window: engine_options.BatchWindow = None,
    tenants: options.Tenants = None,
    look_ahead: engine_options.LookAhead = _UP.looks_ahead,
    deterministic: engine_options.Deterministic = _UP.is_deterministic,
    drain_seconds: options.DrainSeconds = _UP.drain_seconds,
    metrics_port: options.MetricsPort = None,
    otlp: options.Otlp = None,
    max_body_size: gateway_options.MaxBodySize = DEFAULT_LIMITS.max_body_bytes,
    max_header_size: gateway_options.MaxHeaderSize = DEFAULT_LIMITS.max_head_bytes,
    max_connections_per_tenant: gateway_options.MaxConnectionsPerTenant = None,
    cors_origins: gateway_options.CorsOrigins = "",
    admin_key_file: gateway_options.AdminKeyFile = None,
    files: batch_options.Files = None,
    batch: batch_options.Batch = None,
    log_level: options.LogLevel = "info",
) -> None:
    """Start everything on this machine; Ctrl-C stops it.

    A queue server, the gateway and the workers, each started again if it dies.
    """
    from headway.services.up import run_up

    settings = UpSettings(
        state_dir=state_dir or default_state_dir(),
        host=host,
        port=port,
        workers=workers,
        model=model,
        served_name=served_name,
        dtype=dtype,
        cpu_kernels=cpu_kernels,
        quantization=quantization,
        tensor_parallel=tensor_parallel,
        has_cuda_graphs=cuda_graphs,
        kv_cache_dtype=kv_cache_dtype,
        keeps_weights=keep_weights,
        pins_threads=pin_threads,
        redis_url=redis_url,
        redis_port=redis_port,
        redis_memory_bytes=redis_memory,
        kv_cache_bytes=kv_cache,
        max_sequences=max_sequences,
        max_batch_tokens=max_batch_tokens,
        speculation=speculation,
        draft_tokens=draft_tokens,
        threads=threads,
        policy=policy,
        batch_window_seconds=batch_window,
        tenants=tenants,
        looks_ahead=look_ahead,
        is_deterministic=deterministic,
        drain_seconds=drain_seconds,
        metrics_port=metrics_port,
        otlp_url=otlp,
        limits=GatewayLimits(
            max_body_bytes=max_body_size,
            max_head_bytes=max_header_size,
            max_connections_per_tenant=max_connections_per_tenant,
            cors_origins=cors_origins,
            admin_key_file=None if admin_key_file is None else str(admin_key_file.absolute()),
        ),
        files=files,
        has_batch=batch,
        log_level=log_level,
    )
    raise typer.Exit(run_up(settings))


@app.command()
def gateway(
    *,
    redis_url: options.RedisUrl = _GATEWAY.redis_url,
    host: options.Host = _GATEWAY.host,
    port: options.Port = _GATEWAY.port,
    listen_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
    tenants: options.Tenants = None,
    drain_seconds: options.DrainSeconds = _GATEWAY.drain_seconds,
    otlp: options.Otlp = None,
    max_body_size: gateway_options.MaxBodySize = DEFAULT_LIMITS.max_body_bytes,
    max_header_size: gateway_options.MaxHeaderSize = DEFAULT_LIMITS.max_head_bytes,
    max_connections_per_tenant: gateway_options.MaxConnectionsPerTenant = None,
    cors_origins: gateway_options.CorsOrigins = "",
    admin_key_file: gateway_options.AdminKeyFile = None,
    files: batch_options.Files = None,
    log_format: options.LogFormatOption = _GATEWAY.log_format,
    log_level: options.LogLevel = "info",
) -> None:
    """Run one gateway: HTTP on one side, the queue on the other."""
    from headway.services.gateway_process import run_gateway

    settings = GatewaySettings(
        redis_url=redis_url or _GATEWAY.redis_url,
        host=host,
        port=port,
        listen_fd=listen_fd,
        tenants=tenants,
        drain_seconds=drain_seconds,
        otlp_url=otlp,
        limits=GatewayLimits(
            max_body_bytes=max_body_size,
            max_head_bytes=max_header_size,
            max_connections_per_tenant=max_connections_per_tenant,
            cors_origins=cors_origins,
            admin_key_file=None if admin_key_file is None else str(admin_key_file.absolute()),
        ),
        files=files,
        log_format=log_format,
        log_level=log_level,
    )
    raise typer.Exit(run_gateway(settings))


@app.command()
def worker(
    *,
    redis_url: options.RedisUrl = _WORKER.redis_url,
    model: options.Model = _WORKER.model,
    served_name: options.ServedName = None,
    dtype: engine_options.Dtype = _WORKER.dtype,
    cpu_kernels: engine_options.CpuKernelsOption = _WORKER.cpu_kernels,
    quantization: engine_options.QuantizationOption = _WORKER.quantization,
    tensor_parallel: engine_options.TensorParallel = _WORKER.tensor_parallel,
    cuda_graphs: engine_options.CudaGraphsOption = _WORKER.has_cuda_graphs,
    kv_cache_dtype: engine_options.KvCacheDTypeOption = _WORKER.kv_cache_dtype,
    cache_dir: engine_options.CacheDirectory = None,
    keep_weights: engine_options.KeepWeights = _WORKER.keeps_weights,
    pin_threads: engine_options.PinThreads = _WORKER.pins_threads,
    device: engine_options.Device = _WORKER.device,
    tool_parser: engine_options.ToolParser = _WORKER.tool_format,
    reasoning_parser: engine_options.ReasoningParser = _WORKER.reasoning_format,
    worker_id: options.WorkerId = _WORKER.worker_id,
    kv_cache: engine_options.KvCache = None,
    block_size: engine_options.BlockSize = _WORKER.block_size,
    max_model_len: engine_options.MaxModelLen = None,
    max_sequences: engine_options.MaxSequences = _WORKER.max_sequences,
    max_batch_tokens: engine_options.MaxBatchTokens = _WORKER.max_batch_tokens,
    speculation: engine_options.SpeculationOption = _WORKER.speculation,
    draft_tokens: engine_options.DraftTokens = _WORKER.draft_tokens,
    threads: engine_options.Threads = None,
    policy: engine_options.Policy = _WORKER.policy,
    batch_window: engine_options.BatchWindow = None,
    age_limit: engine_options.AgeLimit = None,
    quantum: engine_options.Quantum = None,
    patience: engine_options.Patience = None,
    tenant_weights: engine_options.Weights = "",
    ttft: engine_options.Ttft = None,
    tpot: engine_options.Tpot = None,
    host_cache: engine_options.HostCache = 0,
    shared_prefix: engine_options.SharedPrefixes = None,
    look_ahead: engine_options.LookAhead = _WORKER.looks_ahead,
    deterministic: engine_options.Deterministic = _WORKER.is_deterministic,
    lease_seconds: options.LeaseSeconds = _WORKER.lease_seconds,
    hung_after_seconds: options.HungAfterSeconds = _WORKER.hung_after_seconds,
    drain_seconds: options.DrainSeconds = _WORKER.drain_seconds,
    metrics_port: options.MetricsPort = None,
    metrics_host: options.MetricsHost = _WORKER.metrics_host,
    otlp: options.Otlp = None,
    log_format: options.LogFormatOption = _WORKER.log_format,
    log_level: options.LogLevel = "info",
) -> None:
    """Run one worker: a model that answers jobs.

    SIGTERM drains it: it finishes what it can in --drain-seconds and hands back the rest.
    """
    # Before torch is loaded. By default OpenMP's threads wait for each other in busy loops, which is ruinous
    # when anything else wants the cores, and the gateway always does (two busy cores, SmolLM2-135M: 38 ms
    # per step instead of 280 ms, start in 6 s instead of 13 s).
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

    from headway.services.collector import look_for_cycles_seldom

    look_for_cycles_seldom()  # before the imports, which it makes a tenth faster
    from headway.services.worker import run_worker

    settings = WorkerSettings(
        redis_url=redis_url or _WORKER.redis_url,
        model=model,
        served_name=served_name,
        dtype=dtype,
        cpu_kernels=cpu_kernels,
        quantization=quantization,
        tensor_parallel=tensor_parallel,
        has_cuda_graphs=cuda_graphs,
        kv_cache_dtype=kv_cache_dtype,
        keeps_weights=keep_weights,
        pins_threads=pin_threads,
        cache_dir=cache_dir or default_cache_dir(),
        device=device,
        tool_format=tool_parser,
        reasoning_format=reasoning_parser,
        worker_id=worker_id,
        kv_cache_bytes=kv_cache,
        block_size=block_size,
        max_model_len=max_model_len,
        max_sequences=max_sequences,
        max_batch_tokens=max_batch_tokens,
        speculation=speculation,
        draft_tokens=draft_tokens,
        threads=threads,
        policy=policy,
        batch_window_seconds=batch_window,
        fair=FairSettings(age_limit, quantum, patience),
        tenant_weights=options.weights(tenant_weights),
        ttft_seconds=ttft,
        tpot_seconds=tpot,
        host_cache_bytes=host_cache,
        shared_prefixes=tuple(shared_prefix or ()),
        looks_ahead=look_ahead,
        is_deterministic=deterministic,
        lease_seconds=lease_seconds,
        hung_after_seconds=hung_after_seconds,
        drain_seconds=drain_seconds,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        otlp_url=otlp,
        log_format=log_format,
        log_level=log_level,
    )
    raise typer.Exit(run_worker(settings))


@app.command()
def status(
    *,
    json_output: options.JsonOutput = False,
    state_dir: options.StateDirectory = None,
    redis_url: options.RedisUrl = None,
) -> None:
    """Say what runs, with pids.

    The `headway up` of a state dir, or the workers that registered at --redis-url. With --json the queue's
    URL is complete, its password included: pass it on as HEADWAY_REDIS_URL, and keep it out of logs.
    """
    from headway.services.status import find_status, nothing_runs

    place = state_dir or default_state_dir()
    found = find_status(place, redis_url)
    if json_output:
        print(json.dumps(found.to_json()))
    else:
        print("\n".join(found.table()) if found.runs else nothing_runs(place, redis_url))
    if not found.runs:
        raise typer.Exit(3)


@app.command()
def schema() -> None:
    """Print the job contract as JSON Schema."""
    from headway.queueing.messages import job_schema

    print(json.dumps(job_schema(), indent=2))


add_doctor_command(app)
add_job_commands(app)
add_batch_commands(app)
add_bench_command(app)
add_dlq_commands(app)
add_fleet_commands(app)
add_tenant_commands(app)
add_simulate_command(app)
add_trace_command(app)
add_profile_command(app)
add_calibrate_command(app)
add_tune_command(app)


def main() -> None:
    """Run the command line; expected failures become one message and an exit code."""
    try:
        app(prog_name="headway")
    except ServiceError as error:
        show_failure(error)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        if (error.name or "headway").partition(".")[0] == "headway":
            raise
        missing = StartError(
            f"{error.name} is not installed", hint="pip install 'headway[worker,gateway,embedded]'"
        )
        show_failure(missing)
        sys.exit(missing.exit_code)


if __name__ == "__main__":
    main()
