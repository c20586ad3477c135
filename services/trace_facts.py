"""What stands beside a worker's trace: how it is set up, and which moment of its clock is now."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from headway import __version__
from headway.services.model_host import ModelHost
from headway.services.settings import WorkerSettings, shown


def trace_facts(settings: WorkerSettings, host: ModelHost, clock: Callable[[], float]) -> dict[str, Any]:
    """For ``otherData`` of a Chrome trace, which viewers show as it is. ``clock``: the trace's own."""
    return {
        "version": __version__,
        "model": host.model.name,
        "max_model_len": host.model.max_model_len,
        "kv_blocks": host.engine.load.kv_blocks_total,
        "kv_bytes_per_token": host.sizes.bytes_per_token,
        "kernels": host.kernels,
        "weights": host.weights,
        "clock_seconds": clock(),
        "unix_seconds": time.time(),
        "settings": {name: _plain(value) for name, value in shown(settings).items()},
    }


def _plain(value: object) -> object:
    """As JSON has it; a path, or a tuple of them, as text."""
    if isinstance(value, dict | list | str | int | float | bool) or value is None:
        return value  # pyright: ignore[reportUnknownVariableType]  # a dict of any values
    return [str(each) for each in value] if isinstance(value, tuple) else str(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # of any values
