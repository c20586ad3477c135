"""The name of this machine's processor."""

from __future__ import annotations

import platform
from pathlib import Path


def processor_name() -> str:
    """As Linux calls it; the kind of machine where it does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
