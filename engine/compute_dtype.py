"""Which number format the model computes in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import torch

from headway.engine.errors import ModelError

DtypeName: TypeAlias = Literal["auto", "float32", "bfloat16"]

NATIVE_BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")
"""Names in ``torch.cpu.get_capabilities()`` of bfloat16 dot products: x86, then ARM."""


def compute_dtype(name: str, device: torch.device, capabilities: Mapping[str, Any]) -> torch.dtype:
    """The dtype for ``auto``, ``float32`` or ``bfloat16``.

    ``auto`` is bfloat16 where it is faster: on accelerators, and on CPUs that multiply it natively.
    ``capabilities`` is what the CPU says of itself (``torch.cpu.get_capabilities()``).
    """
    if name == "float32":
        return torch.float32
    if name == "bfloat16":
        return torch.bfloat16
    if name != "auto":
        raise ModelError(f"dtype {name!r} is not known; use auto, float32 or bfloat16")
    native = device.type != "cpu" or any(capabilities.get(feature) is True for feature in NATIVE_BFLOAT16)
    return torch.bfloat16 if native else torch.float32
