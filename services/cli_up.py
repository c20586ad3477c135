"""``headway up``: everything on this machine."""

from __future__ import annotations

from pathlib import Path

import typer

from headway.services import cli_batch_options as batch_options
from headway.services import cli_engine_options as engine_options
from headway.services import cli_gateway_options as gateway_options
from headway.services import cli_options as options
from headway.services.gateway_limits import DEFAULT_LIMITS, GatewayLimits
from headway.services.settings import UpSettings, default_state_dir

_UP = UpSettings(state_dir=Path())


def add_up_command(app: typer.Typer) -> None:
    """Add the command to the ``headway`` command."""
    app.command()(up)


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
    tune_kernels: engine_options.TuneKernels = _UP.tunes_kernels,
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
        tunes_kernels=tune_kernels,
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
