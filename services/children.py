"""The command lines of the processes that ``headway up`` starts.

Everything is explicit, except the queue's URL: it may hold a password, so it goes into the environment
(``HEADWAY_REDIS_URL``) and not where ``ps`` shows it.
"""

from __future__ import annotations

import sys

from headway.services.settings import UpSettings, served_name


def headway_command(*arguments: str) -> list[str]:
    """This installation's ``headway`` with this interpreter, whatever the working directory holds (-P)."""
    return [sys.executable, "-P", "-m", "headway.services.cli", *arguments]


def worker_command(settings: UpSettings, worker_id: str, index: int) -> list[str]:
    """One worker; ``index`` counts from 0."""
    options: list[tuple[str, object | None]] = [
        ("--model", settings.model),
        ("--served-name", served_name(settings.model, settings.served_name)),
        ("--dtype", settings.dtype),
        ("--cpu-kernels", settings.cpu_kernels),
        ("--quantization", settings.quantization),
        ("--kv-cache-dtype", settings.kv_cache_dtype),
        ("--tensor-parallel", settings.tensor_parallel),
        ("--worker-id", worker_id),
        ("--kv-cache", settings.kv_cache_bytes),
        ("--max-sequences", settings.max_sequences),
        ("--max-batch-tokens", settings.max_batch_tokens),
        ("--speculation", settings.speculation),
        ("--draft-tokens", settings.draft_tokens),
        ("--threads", settings.threads),
        ("--policy", settings.policy),
        ("--batch-window", settings.batch_window_seconds),
        ("--drain-seconds", settings.drain_seconds),
        ("--metrics-port", settings.metrics_port_of(index)),
        ("--otlp", settings.otlp_url),
        ("--log-format", "json"),
        ("--log-level", settings.log_level),
    ]
    look_ahead = "--look-ahead" if settings.looks_ahead else "--no-look-ahead"
    keep = "--keep-weights" if settings.keeps_weights else "--no-keep-weights"
    pin = "--pin-threads" if settings.pins_threads else "--no-pin-threads"
    deterministic = "--deterministic" if settings.is_deterministic else "--no-deterministic"
    graphs = "--cuda-graphs" if settings.has_cuda_graphs else "--no-cuda-graphs"
    tune = "--tune-kernels" if settings.tunes_kernels else "--no-tune-kernels"
    return headway_command("worker", look_ahead, keep, pin, deterministic, graphs, tune, *_arguments(options))


def gateway_command(settings: UpSettings, listen_fd: int) -> list[str]:
    """The gateway, on a socket that is already open."""
    options: list[tuple[str, object | None]] = [
        ("--host", settings.host),
        ("--port", settings.port),
        ("--listen-fd", listen_fd),
        ("--tenants", settings.tenants),
        ("--drain-seconds", settings.drain_seconds),
        ("--otlp", settings.otlp_url),
        *settings.limits.arguments(),
        ("--files", settings.files),
        ("--log-format", "json"),
        ("--log-level", settings.log_level),
    ]
    return headway_command("gateway", *_arguments(options))


def batch_command(settings: UpSettings, ready_fd: int) -> list[str]:
    """The batch service, which says through an inherited descriptor that it serves."""
    options: list[tuple[str, object | None]] = [
        ("--files", settings.files),
        ("--metrics-port", settings.metrics_port_of(settings.workers)),
        ("--ready-fd", ready_fd),
        ("--log-format", "json"),
        ("--log-level", settings.log_level),
    ]
    return headway_command("batch", "worker", *_arguments(options))


def _arguments(options: list[tuple[str, object | None]]) -> list[str]:
    return [part for name, value in options if value is not None for part in (name, str(value))]
