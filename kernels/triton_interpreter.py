"""Triton's interpreter with the rounding of the hardware.

Triton 3.6's interpreter truncates on the way to bfloat16, multiplies matrices of bfloat16 by their bit
patterns, casts integers to it as bits, and takes a loop's bounds from memory only with NumPy < 2.4. Here
conversions are torch's (to nearest, ties to even), and
products of 8- and 16-bit floats are made in float32, as matrix units do. A kernel's error in the interpreter
is then the error that a GPU would show.
"""

from __future__ import annotations

import importlib
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from headway.kernels.host_arrays import to_device

TORCH_TYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e4b8": torch.float8_e4m3fnuz,
    "fp8e5": torch.float8_e5m2,
}
"""Triton's floating-point types by name."""

BITS = {torch.bfloat16: torch.uint16}
"""NumPy has no such number: the interpreter keeps its bits. Types of one byte are kept as uint8."""


def install() -> None:
    """Correct the interpreter of this process; done again, it changes nothing."""
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    builder = interpreter.InterpreterBuilder
    original_cast = builder.cast_impl
    if original_cast.__module__ == __name__:
        return

    def convert_float(array: NDArray[Any], source: Any, target: Any, _rounding: object) -> NDArray[Any]:
        return _bits(_tensor(array, source).to(TORCH_TYPES[target.name]))

    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        if "bf16" not in {source.dtype.scalar.name, target.scalar.name}:
            return original_cast(self, source, target)
        numbers = _tensor(source.data, source.dtype.scalar)
        if target.scalar.name == "bf16":
            bits = _bits(numbers.to(torch.bfloat16))
        else:
            bits = _numpy(numbers.float()).astype(interpreter._get_np_dtype(target))
        return interpreter.TensorHandle(bits, target.scalar)

    def create_dot(_self: Any, left: Any, right: Any, total: Any, *_precision: object) -> Any:
        dtype = total.data.dtype
        product = np.matmul(*(_numpy(_wide(side)).astype(dtype, copy=False) for side in (left, right)))
        return interpreter.TensorHandle(product + total.data, total.dtype.scalar)

    patch_tensor = interpreter._patch_lang_tensor

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", _as_int)

    interpreter._patch_lang_tensor = patch_lang_tensor
    interpreter._convert_float = convert_float
    builder.cast_impl = cast_impl
    builder.create_dot = create_dot


def _as_int(scalar: Any) -> int:
    return int(scalar.handle.data.item())


def _wide(handle: Any) -> torch.Tensor:
    numbers = _tensor(handle.data, handle.dtype.scalar)
    return numbers.float() if numbers.is_floating_point() and numbers.itemsize < 4 else numbers


def _tensor(array: NDArray[Any], kind: Any) -> torch.Tensor:
    """The interpreter's array as the numbers that it stands for."""
    shared = to_device(np.require(array, requirements=["C", "W"]), torch.device("cpu"))
    number = TORCH_TYPES.get(kind.name)
    return shared if number is None or shared.dtype == number else shared.view(number)


def _bits(numbers: torch.Tensor) -> NDArray[Any]:
    """As the interpreter keeps them."""
    if numbers.itemsize == 1:
        return _numpy(numbers.view(torch.uint8))
    return _numpy(numbers.view(BITS.get(numbers.dtype, numbers.dtype)))


def _numpy(numbers: torch.Tensor) -> NDArray[Any]:
    return cast("NDArray[Any]", cast(Any, numbers).numpy())
