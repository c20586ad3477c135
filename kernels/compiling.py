"""Compiles real launches for chips that are not here, and reads what the compilers say of them.

The launcher itself runs, on ``meta`` tensors, with a driver that answers only which chip it is; every Triton
launch on the way is compiled as it would be, and not started. So signatures, specialisation on alignment,
constants, warps and stages are those of production.
"""

from __future__ import annotations

import importlib
import re
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from headway.kernels.cases import Case, cases, tile_cases
from headway.kernels.launch import CHIPS, L4, Chip


@dataclass(frozen=True, slots=True)
class Compiled:
    """One Triton kernel of a case, for one chip."""

    kernel: str
    registers: int
    """Per thread."""
    spills: int
    """CUDA: bytes of stack per thread, where spilled registers lie; HIP: spilled registers of both kinds."""
    shared_bytes: int
    num_warps: int
    num_stages: int


def target_name(chip: Chip) -> str:
    """``cuda:90``, ``hip:gfx942``."""
    return f"{chip.backend}:{chip.architecture}"


def compile_case(case: Case, chip: Chip) -> tuple[Compiled, ...]:
    """Every distinct Triton launch of the case, compiled for the chip; not while TRITON_INTERPRET is set."""
    with _compiling_for(chip) as made:
        case.prepare(torch.device("meta"), chip).launch()
    distinct = {kernel.hash: kernel for kernel in made}
    return tuple(_report(kernel, chip) for kernel in distinct.values())


def compile_named(name: str, target: str) -> tuple[Compiled, ...]:
    """``compile_case`` by names, as another process can be told."""
    chip = next(chip for chip in (*CHIPS, L4) if target_name(chip) == target)
    case = next(case for case in (*cases(), *tile_cases(chip)) if case.name == name)
    return compile_case(case, chip)


class _AbsentChip:
    """As much of a Triton driver as compiling needs."""

    def __init__(self, chip: Chip) -> None:
        target = _triton("backends.compiler").GPUTarget
        self._target = target(chip.backend, chip.architecture, chip.warp_size)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> Any:
        return self._target.arch  # launches are cached per device: one for each target

    def get_current_stream(self, _device: object = None) -> int:
        return 0


@contextmanager
def _compiling_for(chip: Chip) -> Generator[list[Any]]:
    """Within, launches are compiled for the chip and collected."""
    made: list[Any] = []
    function, driver = _triton("runtime.jit").JITFunction, _triton("runtime.driver").driver
    run = function.run

    def compile_only(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        assert not warmup
        made.append(run(self, *arguments, grid=grid, warmup=True, **options))

    driver.set_active(_AbsentChip(chip))
    function.run = compile_only
    try:
        yield made
    finally:
        function.run = run
        driver.set_active(None)


def _report(kernel: Any, chip: Chip) -> Compiled:
    registers, spills = _cuda_usage(kernel) if chip.backend == "cuda" else _hip_usage(kernel)
    facts = kernel.metadata
    return Compiled(facts.name, registers, spills, facts.shared, facts.num_warps, facts.num_stages)


def _cuda_usage(kernel: Any) -> tuple[int, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [_triton("knobs").nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    assert found, f"cuobjdump names no resources: {text}"
    return int(found[1]), int(found[2]) + int(found[3])


def _hip_usage(kernel: Any) -> tuple[int, int]:
    def number(key: str) -> int:
        found = re.search(rf"\.{key}:\s+(\d+)", kernel.asm["amdgcn"])
        assert found, f"the assembly does not name {key}"
        return int(found[1])

    return number("vgpr_count"), number("vgpr_spill_count") + number("sgpr_spill_count")


def _triton(name: str) -> Any:
    # Triton ships no types; imported by name, its modules are open to the type checkers.
    return importlib.import_module(f"triton.{name}")
