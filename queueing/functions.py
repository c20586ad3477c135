"""The function library as one text, and keeping the server's copy of it current.

``python -m headway.queueing.functions | redis-cli -x FUNCTION LOAD REPLACE`` loads it by hand.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

LIBRARY: Final = "headway"
VERSION: Final = 9
"""Grows with every change of the library that an older process would notice. A server's newer copy stays:
functions keep accepting the arguments of older versions, so a fleet can be upgraded process by process."""

_PARTS: Final = (
    *("common", "books", "submit", "ending", "claim", "publish", "upkeep", "letters", "restore"),
    *("buckets", "accounts", "reservations", "quota", "tenants", "probe"),
)
_VERSION_LINE = re.compile(r"^-- library version ([0-9]+)$", re.MULTILINE)


@cache
def library() -> str:
    """The library's source, as ``FUNCTION LOAD`` takes it."""
    folder = Path(__file__).with_name("lua")
    parts = [(folder / f"{part}.lua").read_text(encoding="utf-8") for part in _PARTS]
    return "\n".join([f"#!lua name={LIBRARY}", f"-- library version {VERSION}", *parts])


def version_of(source: str) -> int:
    """The version that a loaded library states; 0 when it states none."""
    found = _VERSION_LINE.search(source)
    return int(found[1]) if found else 0


if __name__ == "__main__":
    print(library())
