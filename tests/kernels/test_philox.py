"""Philox against the published known answers (Random123's kat_vectors), and what the draws promise."""

from __future__ import annotations

import pytest
import torch

from headway.kernels.philox import philox4x32, uniforms

KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def words(values: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.tensor([value], dtype=torch.int64) for value in values]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_known_answers(counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]) -> None:
    c0, c1, c2, c3 = words(counter)
    k0, k1 = words(key)
    assert tuple(int(word) for word in philox4x32((c0, c1, c2, c3), (k0, k1))) == expected


def test_a_draw_depends_on_seed_and_position_only() -> None:
    seeds = torch.tensor([3, 2**62, -5, 3], dtype=torch.int64)
    positions = torch.tensor([0, 7, 7, 1], dtype=torch.int64)
    together = uniforms(seeds, positions)
    shuffled = uniforms(seeds.flip(0), positions.flip(0)).flip(0)
    alone = torch.cat([uniforms(seeds[i : i + 1], positions[i : i + 1]) for i in range(4)])
    assert torch.equal(together, shuffled)
    assert torch.equal(together, alone)
    assert len(set(map(float, together))) == 4


def test_draws_are_uniform_over_positions_and_over_seeds() -> None:
    count, bins = 1 << 16, 64
    ramp = torch.arange(count)
    for seeds, positions in ((torch.full_like(ramp, 42), ramp), (ramp, torch.full_like(ramp, 3))):
        draws = uniforms(seeds, positions)
        assert float(draws.min()) >= 0.0
        assert float(draws.max()) < 1.0
        observed = torch.histc(draws.float(), bins, 0.0, 1.0)
        chi_square = float(((observed - count / bins) ** 2 / (count / bins)).sum())
        assert chi_square < 103.4, "63 degrees of freedom: 103.4 is passed once in a thousand"
