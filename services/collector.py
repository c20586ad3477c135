"""How often Python looks for values that only refer to each other."""

from __future__ import annotations

import gc
from typing import Final

YOUNG_VALUES: Final = 20_000
"""Python's own 700 is passed several times in a step of 256 requests, for a tenth of the step's planning."""


def look_for_cycles_seldom() -> None:
    """For processes that step: what a step makes is gone with the next one, by reference counts alone."""
    gc.set_threshold(YOUNG_VALUES)
