"""Sizes and durations as people write and read them: ``2GiB``, ``512MB``, ``30s``, ``1.5h``.

A bare number is bytes, or seconds.
"""

from __future__ import annotations

import re
from typing import Final

_NUMBER: Final = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*$")
_SIZES: Final = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kib": 1 << 10,
    "kb": 10**3,
    "m": 1 << 20,
    "mib": 1 << 20,
    "mb": 10**6,
    "g": 1 << 30,
    "gib": 1 << 30,
    "gb": 10**9,
}
_DURATIONS: Final = {"": 1.0, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size(text: str) -> int:
    """Bytes; raises ValueError that shows how a size is written."""
    number, factor = _split(text, _SIZES, "a size is written like 512MiB or 2GiB")
    return int(number * factor)


def parse_duration(text: str) -> float:
    """Seconds; raises ValueError that shows how a duration is written."""
    number, factor = _split(text, _DURATIONS, "a duration is written like 30s, 5m or 2h")
    return number * factor


def _split(text: str, units: dict[str, int] | dict[str, float], how: str) -> tuple[float, float]:
    match = _NUMBER.match(text)
    if match is None or match[2].lower() not in units:
        raise ValueError(f"{text!r}: {how}")
    return float(match[1]), units[match[2].lower()]


def show_duration(seconds: float) -> str:
    """A duration as ``0.3s``, ``12s``, ``3m05s``, ``2h10m`` or ``4d02h``; less than nothing is ``0.0s``."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"
