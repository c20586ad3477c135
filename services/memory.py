"""How much memory this machine, or the container that we run in, can still give us. All sizes are bytes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_UNLIMITED = 1 << 60
"""cgroup v1 writes "no limit" as a number near 2**63; nothing real is this large."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What exists and what is free: the least that the machine and every enclosing cgroup allow."""

    total_bytes: int
    available_bytes: int
    limited_by: str
    """``machine``, or the cgroup whose limit is the tightest."""


def read_memory(root: Path = Path("/")) -> Memory:
    """Read /proc/meminfo and the cgroup limits (v2 and v1) under ``root``."""
    found = [_machine(root), *_cgroups(root)]
    tightest = min(found, key=lambda memory: memory.available_bytes)
    return Memory(min(memory.total_bytes for memory in found), tightest.available_bytes, tightest.limited_by)


def _machine(root: Path) -> Memory:
    fields: dict[str, int] = {}
    for line in (root / "proc/meminfo").read_text(encoding="ascii").splitlines():
        name, _, rest = line.partition(":")
        fields[name] = int(rest.split()[0]) * 1024  # meminfo counts in KiB
    return Memory(fields["MemTotal"], fields.get("MemAvailable", fields["MemFree"]), "machine")


def _cgroups(root: Path) -> list[Memory]:
    found: list[Memory] = []
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return found
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # Every ancestor's limit holds too. In a container the path may not exist under the mount: the mount
        # itself is then our own group.
        parts = Path(path.lstrip("/")).parts
        for depth in range(len(parts), -1, -1):
            folder = mount.joinpath(*parts[:depth])
            memory = _cgroup(folder, *names)
            if memory is not None:
                found.append(memory)
    return found


def _cgroup(folder: Path, limit_name: str, usage_name: str, reclaimable: str) -> Memory | None:
    try:
        limit_text = (folder / limit_name).read_text(encoding="ascii").strip()
        usage = int((folder / usage_name).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    if limit_text == "max" or int(limit_text) >= _UNLIMITED:
        return None
    # The page cache is counted as usage, yet given back on demand.
    usage -= _stat_field(folder / "memory.stat", reclaimable)
    limit = int(limit_text)
    return Memory(limit, max(0, limit - max(0, usage)), str(folder))


def _stat_field(path: Path, name: str) -> int:
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
