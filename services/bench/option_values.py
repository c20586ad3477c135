"""How rates, counts, limits and scales are written on the command line of ``headway bench``."""

from __future__ import annotations

from headway.services.units import parse_duration


def parse_numbers(text: str) -> list[float]:
    """``1,2,4``, as given; raises ValueError that shows how they are written."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0.0 < number <= 1e6 for number in numbers):
        raise ValueError(f"{text!r}: numbers above 0 with commas between them, such as 1,2,4")
    return numbers


def parse_counts(text: str) -> list[int]:
    """``1,4,16``; raises ValueError that shows how they are written."""
    numbers = parse_numbers(text)
    if not all(number == int(number) for number in numbers):
        raise ValueError(f"{text!r}: whole numbers with commas between them, such as 1,4,16")
    return [int(number) for number in numbers]


def parse_limit(text: str) -> float | None:
    """A duration, or ``none``."""
    return None if text == "none" else parse_duration(text)


def parse_scale(text: str) -> float | None:
    """A factor above 0, or ``fit``."""
    if text == "fit":
        return None
    try:
        (scale,) = parse_numbers(text)
    except ValueError:
        raise ValueError(f"{text!r}: one number above 0, or fit") from None
    return scale
