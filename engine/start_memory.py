"""A GPU's want of memory while a model is made ready, told as what to change.

The KV cache takes most of what the weights leave, so what comes after it meets the end of the memory first:
activations of the widest steps, graphs, compiled kernels, the libraries' workspaces.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch

from headway.engine.errors import ModelError

WORDS = ("out of memory", "STATUS_ALLOC_FAILED")
"""Of drivers, of Triton and of the vendors' libraries, whose errors have no type of their own."""


@contextmanager
def told_of_memory(device: torch.device, kv_bytes: int) -> Generator[None]:
    """ModelError for what fails inside for want of memory; ``kv_bytes``: what the KV cache takes of it."""
    try:
        yield
    except Exception as error:  # Triton's are its own
        if isinstance(error, ModelError) or not is_out_of_memory(error):
            raise
        raise ModelError(
            f"no memory is left on {device} for steps beside the weights and a KV cache of "
            f"{kv_bytes / 2**30:.2f} GiB: lower --kv-cache or --max-sequences ({_first_line(error)})"
        ) from error


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether it, or what it came of, is that: a recording that is broken off says first that it was."""
    while error is not None:
        if isinstance(error, torch.OutOfMemoryError) or any(words in str(error) for words in WORDS):
            return True
        error = error.__cause__ or error.__context__
    return False


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
