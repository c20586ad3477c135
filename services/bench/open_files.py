"""Room for open connections: each takes a file, and a shell's usual limit is 1,024 of them."""

from __future__ import annotations

import resource
from typing import Final

SPARE: Final = 64
"""For everything that is no connection."""


def allow_open(wanted: int) -> int:
    """Raise this process's limit of open files as far as it may; returns how many connections fit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + SPARE
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(1, allowed - SPARE)
