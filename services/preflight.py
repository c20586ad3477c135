"""What ``headway up`` can know before anything starts: installed parts, the model's files, memory."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from headway.engine.errors import ModelError
from headway.engine.model_source import packaged_models, resolve_model
from headway.services.errors import StartError, UsageError
from headway.services.memory import Memory
from headway.services.settings import UpSettings
from headway.services.toy_model import is_toy, parse_toy

WORKER_BYTES = 400 << 20
"""Of a torch process beside weights and KV: 150 MiB at rest (measured), the rest for activations."""
LARGEST_DEFAULT_KV_BYTES = 2 << 30


def check_installed(model: str) -> None:
    """Raise StartError when the parts that ``up`` needs are not installed."""
    needed = {"fastapi": "gateway", "uvicorn": "gateway", "structlog": "gateway"}
    if not is_toy(model):
        needed |= {"torch": "worker", "gguf": "worker"}
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        extras = ",".join(sorted({needed[name] for name in missing} | {"embedded"}))
        raise StartError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed",
            hint=f"pip install 'headway[{extras}]' (in a clone: make setup)",
        )


def check_model(model: str) -> None:
    """Raise StartError when a packaged or local model is not there; hub ids are left to the worker."""
    if is_toy(model):
        parse_toy(model)
        return
    is_hub_id = model not in packaged_models() and "/" in model and not Path(model).expanduser().exists()
    if is_hub_id and not model.startswith(("/", ".", "~")):
        return
    try:
        resolve_model(model, hub=False)
    except ModelError as error:
        message, _, command = str(error).partition("; type: ")
        hint = f"{command} (in a clone: make setup)" if command else None
        raise StartError(message, hint=hint) from None


def share_out(settings: UpSettings, memory: Memory, cores: int) -> UpSettings:
    """Settings with what several workers must share made explicit; raises StartError when it cannot fit.

    UsageError: something that several workers of one machine cannot do.
    One worker alone sizes itself. KV caches become resident as they fill, so what is promised now must be
    there later.
    """
    count = settings.workers
    if settings.pins_threads and count > 1:
        raise UsageError(
            "--pin-threads pins every worker's threads to the same cores",
            hint="start each with `headway worker` under taskset, or one worker with more threads",
        )
    if is_toy(settings.model):
        return settings
    fits = memory.available_bytes // count - WORKER_BYTES
    kv_bytes = settings.kv_cache_bytes
    if kv_bytes is None and count > 1:
        kv_bytes = max(0, min(LARGEST_DEFAULT_KV_BYTES, fits // 4))
    if (kv_bytes or 0) > fits or fits <= 0:
        raise _too_little(settings, memory, fits)
    threads = settings.threads or (None if count == 1 else max(1, cores // count))
    return replace(settings, kv_cache_bytes=kv_bytes, threads=threads)


def _too_little(settings: UpSettings, memory: Memory, fits: int) -> StartError:
    place = "" if memory.limited_by == "machine" else f" (limit of {memory.limited_by})"
    workers = f"{settings.workers} worker{'s' if settings.workers > 1 else ''}"
    asked = settings.kv_cache_bytes or 0
    wanted = f"{workers} with {_mib(WORKER_BYTES + asked)} each, weights not counted"
    # Half of what is left is for the weights.
    half = fits // 2
    return StartError(
        f"too little memory: {wanted}, but {_mib(memory.available_bytes)} are free{place}",
        hint=f"--kv-cache {half >> 20}MiB" if half >= 16 << 20 else "fewer --workers, or free some memory",
    )


def _mib(count: int) -> str:
    return f"{count >> 20} MiB"
