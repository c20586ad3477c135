"""What a recording that fails is told as, with something in place of CUDA's graphs."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext

import pytest
import torch

from headway.engine.errors import ModelError
from headway.engine.start_memory import told_of_memory
from headway.engine.step_graphs import CudaGraphs

CPU = torch.device("cpu")


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> CudaGraphs:
    """A recording that fails is broken off, which the driver says instead of what failed."""

    @contextmanager
    def graph(*_: object, **__: object) -> Generator[None]:
        try:
            yield
        except RuntimeError:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")  # noqa: B904  # as torch's own __exit__ does

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: None)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "graph", graph)
    return CudaGraphs(CPU)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
    ],
    ids=["torch", "driver", "library"],
)
def test_a_recording_without_memory_does_not_blame_graphs(graphs: CudaGraphs, error: Exception) -> None:
    def work() -> None:
        raise error

    with (
        pytest.raises(
            ModelError, match=r"KV cache of 3\.00 GiB: lower --kv-cache or --max-sequences"
        ) as told,
        told_of_memory(CPU, 3 << 30),
    ):
        graphs.capture(work)
    assert "--no-cuda-graphs" not in str(told.value)


def test_a_recording_that_fails_otherwise_says_how_to_do_without(graphs: CudaGraphs) -> None:
    def work() -> None:
        raise RuntimeError("not permitted when stream is capturing")

    with pytest.raises(ModelError, match="start with --no-cuda-graphs"), told_of_memory(CPU, 3 << 30):
        graphs.capture(work)


def test_what_is_no_want_of_memory_is_passed_on() -> None:
    with pytest.raises(ZeroDivisionError), told_of_memory(CPU, 0):
        raise ZeroDivisionError
