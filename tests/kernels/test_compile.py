"""Every real launch of every kernel compiles for every target, keeps its registers, and fits the chip.

A process of its own compiles: in this one kernels are interpreted. Triton's cache makes the second run fast.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeAlias

import pytest

from headway.kernels.cases import cases
from headway.kernels.compiling import compile_named, target_name
from headway.kernels.launch import CHIPS, Chip

pytest.importorskip("triton")

Compiler: TypeAlias = ProcessPoolExecutor


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        with pytest.MonkeyPatch.context() as environment:
            environment.delenv("TRITON_INTERPRET", raising=False)
            process.submit(target_name, CHIPS[0]).result()  # it starts here
        yield process


@pytest.mark.parametrize("chip", CHIPS, ids=target_name)
@pytest.mark.parametrize("name", [case.name for case in cases()])
def test_launches_compile_without_spills_within_shared_memory(
    compiler: Compiler, name: str, chip: Chip
) -> None:
    compiled = compiler.submit(compile_named, name, target_name(chip)).result()
    assert compiled, "the case launches no Triton kernel"
    for kernel in compiled:
        assert kernel.spills == 0, kernel
        assert kernel.shared_bytes <= chip.shared_bytes, kernel


def test_case_names_are_unique() -> None:
    names = [case.name for case in (*cases(), *cases(tiny=True))]
    assert len(names) == len(set(names))
