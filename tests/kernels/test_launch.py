"""A GPU is taken by what it says of itself, or refused with what would do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from headway.kernels.attention_plan import AttentionShape
from headway.kernels.eight_bits import fp8_type
from headway.kernels.launch import (
    A100,
    B200,
    CHIPS,
    H100,
    L4,
    MI300X,
    Chip,
    DeviceProperties,
    UnsupportedChipError,
    chip_from,
    chip_of,
)
from headway.kernels.varlen_batch import attention_tile

KIB = 1 << 10


def nvidia(name: str, major: int, minor: int, shared_kib: int, processors: int = 100) -> DeviceProperties:
    return DeviceProperties(name, (major, minor), None, 32, processors, shared_kib * KIB)


def amd(name: str, architecture: str) -> DeviceProperties:
    return DeviceProperties(name, (9, 4), architecture, 64, 304, 64 * KIB)


@pytest.mark.parametrize(
    ("found", "like"),
    [
        (nvidia("NVIDIA A100-SXM4-80GB", 8, 0, 163, 108), A100),
        (nvidia("NVIDIA H200", 9, 0, 227, 132), H100),
        (nvidia("NVIDIA B200", 10, 0, 227, 148), B200),
        (nvidia("NVIDIA L4", 8, 9, 99, 58), L4),
        (amd("AMD Instinct MI300X", "gfx942:sramecc+:xnack-"), MI300X),
    ],
    ids=lambda value: value.name,
)
def test_a_chip_of_the_table_is_that_chip_under_its_own_name(found: DeviceProperties, like: Chip) -> None:
    assert chip_from(found) == replace(like, name=found.name)


@pytest.mark.parametrize(
    "found",
    [
        nvidia("NVIDIA GeForce RTX 4090", 8, 9, 99, 128),
        nvidia("NVIDIA A10", 8, 6, 99, 72),
        nvidia("NVIDIA A30", 8, 0, 163, 56),
        nvidia("NVIDIA GeForce RTX 5090", 12, 0, 99, 170),
        nvidia("NVIDIA B300", 10, 3, 227, 148),
    ],
    ids=lambda found: found.name,
)
def test_other_chips_have_their_own_processors_and_shared_memory(found: DeviceProperties) -> None:
    chip = chip_from(found)
    assert (chip.processors, chip.shared_bytes) == (found.processors, found.shared_bytes)
    assert chip.architecture == 10 * found.capability[0] + found.capability[1]


def test_fp8_is_what_the_capability_has() -> None:
    numbers = {
        "A10": (fp8_type(chip_from(nvidia("A10", 8, 6, 99))), None),
        "A100": (fp8_type(A100), None),
        "L4": (fp8_type(L4), torch.float8_e4m3fn),
        "RTX 4090": (fp8_type(chip_from(nvidia("RTX 4090", 8, 9, 99))), torch.float8_e4m3fn),
        "H100": (fp8_type(H100), torch.float8_e4m3fn),
        "MI300X": (fp8_type(MI300X), torch.float8_e4m3fnuz),
    }
    assert {name: pair[0] for name, pair in numbers.items()} == {n: pair[1] for n, pair in numbers.items()}


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (nvidia("Tesla T4", 7, 5, 64), r"Tesla T4 has compute capability 7.5 and 64 KiB .* need 8.0 and 99"),
        (nvidia("Tesla V100", 7, 0, 96), r"Tesla V100 has compute capability 7.0"),
        (nvidia("some day's", 13, 0, 48), r"48 KiB of shared memory per block"),
        (amd("AMD Instinct MI250X", "gfx90a:sramecc+"), r"MI250X is gfx90a, and .* made for gfx942 \(MI300X"),
        (amd("AMD Radeon RX 7900", "gfx1100"), r"is gfx1100"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_the_kernels_are_not_made_for_is_refused_with_what_they_are_made_for(
    found: DeviceProperties, words: str
) -> None:
    with pytest.raises(UnsupportedChipError, match=words):
        chip_from(found)


@pytest.mark.parametrize("chip", [*CHIPS, L4], ids=lambda chip: chip.name)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("longest", [1, 4, 512])
def test_the_stages_of_attention_leave_room_in_shared_memory(chip: Chip, head_dim: int, longest: int) -> None:
    shape = AttentionShape(32, 8, head_dim, 16, None, torch.bfloat16, torch.device("cpu"))
    tile = attention_tile(shape, longest, chip)
    queries = tile.rows * head_dim * 2
    stages = tile.num_stages if chip.backend == "cuda" else 1
    assert stages * tile.keys * head_dim * 2 * 2 + queries <= chip.shared_bytes


def test_the_interpreter_has_h100s_table() -> None:
    assert chip_of(torch.device("cpu")) == H100
