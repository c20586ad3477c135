"""Between NumPy on the host and torch, with the types that torch's stubs leave open."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """The array as a tensor; on the CPU it shares memory."""
    # torch's stub leaves the parameter's type open.
    shared = cast(Any, torch).from_numpy(array)
    if device.type == "cuda":
        # From pinned memory the copy takes its place in the stream, and the host need not wait for it; torch
        # keeps the memory until then.
        return cast(Tensor, shared.pin_memory().to(device, non_blocking=True))
    return cast(Tensor, shared.to(device))


def int_list(tensor: Tensor) -> list[int]:
    """A one-dimensional integer tensor as Python numbers."""
    return cast("list[int]", cast(Any, tensor).tolist())


def float_rows(tensor: Tensor) -> list[list[float]]:
    """A two-dimensional tensor as Python numbers."""
    return cast("list[list[float]]", cast(Any, tensor).tolist())


def int_rows(tensor: Tensor) -> list[list[int]]:
    """A two-dimensional integer tensor as Python numbers."""
    return cast("list[list[int]]", cast(Any, tensor).tolist())


def float_list(tensor: Tensor) -> list[float]:
    """A one-dimensional tensor as Python numbers."""
    return cast("list[float]", cast(Any, tensor).tolist())


def as_float32(tensor: Tensor) -> NDArray[np.float32]:
    """A float32 tensor as an array; on the CPU it shares memory."""
    return cast("NDArray[np.float32]", cast(Any, tensor.cpu()).numpy())


def as_float64(tensor: Tensor) -> NDArray[np.float64]:
    """A float64 tensor as an array."""
    return cast("NDArray[np.float64]", cast(Any, tensor.cpu()).numpy())


def as_array(tensor: Tensor) -> NDArray[Any]:
    """A tensor on the CPU as an array that shares its memory."""
    return cast("NDArray[Any]", cast(Any, tensor).numpy())
