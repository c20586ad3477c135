"""Triton where it is installed; elsewhere kernels can be defined, but not launched.

Kernel files import ``jit``, ``tl``, ``Operand`` and ``constexpr`` from here, so that a machine without Triton
still imports them for their torch paths. ``TRITON_INTERPRET=1``, set before this file is imported, makes
every kernel run in Triton's interpreter on CPU tensors.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeAlias

# Triton ships no types, and inside a kernel Python's own types would mislead: everything is open.
_triton: Any = importlib.import_module("triton") if find_spec("triton") is not None else None

AVAILABLE = _triton is not None
"""Is Triton installed?"""

tl: Any = importlib.import_module("triton.language") if AVAILABLE else None

INTERPRETED: bool = AVAILABLE and bool(_triton.knobs.runtime.interpret)
"""Do kernels run in the interpreter?"""

if INTERPRETED:
    importlib.import_module("headway.kernels.triton_interpreter").install()

if TYPE_CHECKING:
    Operand: TypeAlias = Any
    constexpr: TypeAlias = Any
else:
    # Triton's compiler looks annotations up and takes only names of its own: ``Any`` would not compile.
    Operand = tl.tensor if AVAILABLE else None
    """A kernel's run-time parameter."""
    constexpr = tl.constexpr if AVAILABLE else None
    """A parameter known when the kernel is compiled. Triton recognises the annotation by this word."""


def jit(function: Callable[..., Any]) -> Any:
    """``triton.jit``, or, without Triton, the function itself: it is never launched there."""
    return _triton.jit(function) if AVAILABLE else function
