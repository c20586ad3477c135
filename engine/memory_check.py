"""Whether weights and KV cache fit into the memory that is free, told before anything is loaded."""

from __future__ import annotations

import torch

from headway.engine.errors import ModelError


def check_memory(weights: int, dtype: torch.dtype, kv_bytes: int, available_bytes: int | None) -> None:
    """ModelError when they cannot fit; ``available_bytes`` None: nobody knows."""
    if available_bytes is None or weights + kv_bytes <= available_bytes:
        return
    smaller = " or choose bfloat16 (--dtype bfloat16)" if dtype == torch.float32 else ""
    raise ModelError(
        f"not enough memory: weights take {_gib(weights)} in {str(dtype).removeprefix('torch.')} and "
        f"the KV cache {_gib(kv_bytes)}, but {_gib(available_bytes)} are free; "
        + (
            f"lower the KV cache to {_gib(available_bytes - weights)} or less{smaller}"
            if weights < available_bytes
            else f"use a smaller model{smaller}, or free memory"
        )
    )


def _gib(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
