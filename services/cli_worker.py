"""``headway worker``: one process with a model."""

from __future__ import annotations

import os

import typer

from headway.services import cli_engine_options as engine_options
from headway.services import cli_options as options
from headway.services.fair_settings import FairSettings
from headway.services.settings import WorkerSettings, default_cache_dir

_WORKER = WorkerSettings()


def add_worker_command(app: typer.Typer) -> None:
    """Add the command to the ``headway`` command."""
    app.command()(worker)


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
    tune_kernels: engine_options.TuneKernels = _WORKER.tunes_kernels,
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
        tunes_kernels=tune_kernels,
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
