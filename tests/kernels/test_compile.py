"""Every real launch of every kernel compiles for every target, keeps its registers, and fits the chip.

A process of its own compiles: in this one kernels are interpreted. Triton's cache makes the second run fast.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import TypeAlias

import pytest

from headway.kernels.cases import cases, tile_cases
from headway.kernels.compiling import compile_named, target_name
from headway.kernels.launch import CHIPS, L4, Chip

triton = pytest.importorskip("triton")
TRITON = "3.6."
"""Whether registers spill depends on the compiler: the tiles were chosen with this one, a GPU machine's."""
if not triton.__version__.startswith(TRITON):
    reason = f"tiles were chosen with Triton {TRITON}x, and this is {triton.__version__}"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason, allow_module_level=True)

Compiler: TypeAlias = ProcessPoolExecutor

SAMPLE = (
    "int8 weight-only product, Llama 3 8B gate and up, 64 rows, tile short",
    "paged attention, Llama 3 8B, 31 decodes and a chunk of 512, tile short",
)
"""Of the tiles: all of them take the compiler some three minutes, and change seldom."""
TILES = [
    pytest.param(
        case.name,
        chip,
        id=f"{target_name(chip)}-{case.name}",
        marks=() if case.name in SAMPLE else pytest.mark.soak,
    )
    for chip in CHIPS
    for case in tile_cases(chip)
]


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        with pytest.MonkeyPatch.context() as environment:
            environment.delenv("TRITON_INTERPRET", raising=False)
            process.submit(target_name, CHIPS[0]).result()  # it starts here
        yield process


LARGEST = (
    "paged attention, Llama 3 8B, 31 decodes and a chunk of 512",
    "paged attention, Gemma 2 9B, 31 decodes and a chunk of 512",
    "int8 weight-only product, Llama 3 8B gate and up, 64 rows",
    "int8 by int8 product, Llama 3 8B gate and up, 2048 rows",
    "fp8 by fp8 product, Llama 3 8B gate and up, 2048 rows",
)
"""What takes most shared memory, compiled for the least there is, too."""
LAUNCHES = [(case.name, chip) for case in cases() for chip in CHIPS] + [(name, L4) for name in LARGEST]


@pytest.mark.parametrize(
    ("name", "chip"), LAUNCHES, ids=[f"{name}-{target_name(chip)}" for name, chip in LAUNCHES]
)
def test_launches_compile_without_spills_within_shared_memory(
    compiler: Compiler, name: str, chip: Chip
) -> None:
    check(compiler, name, chip)


@pytest.mark.parametrize(("name", "chip"), TILES)
def test_every_tile_that_may_be_measured_compiles_as_well(compiler: Compiler, name: str, chip: Chip) -> None:
    check(compiler, name, chip)


def check(compiler: Compiler, name: str, chip: Chip) -> None:
    compiled = compiler.submit(compile_named, name, target_name(chip)).result()
    assert compiled, "the case launches no Triton kernel"
    for kernel in compiled:
        assert kernel.spills == 0, kernel
        assert kernel.shared_bytes <= chip.shared_bytes, kernel


def test_case_names_are_unique() -> None:
    for chip in CHIPS:
        names = [
            case.name for tiny in (False, True) for case in (*cases(tiny=tiny), *tile_cases(chip, tiny=tiny))
        ]
        assert len(names) == len(set(names))
