"""Sizes and durations as people write them."""

from __future__ import annotations

import pytest

from headway.services.units import parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("123", 123),
        ("2GiB", 2 << 30),
        ("512 mib", 512 << 20),
        ("1.5G", 3 << 29),
        ("2GB", 2 * 10**9),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30), ("30s", 30), ("1.5h", 5400), ("250ms", 0.25), ("2 min", 120)]
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "1e3", "GiB", "3 parsecs", "nan", "1 2"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="2GiB"):
        parse_size(text)
    with pytest.raises(ValueError, match="30s"):
        parse_duration(text)
