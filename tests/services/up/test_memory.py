"""The least of what the machine and every enclosing container allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.services.memory import read_memory

MIB = 1 << 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine of 1000 MiB with 600 free."""
    (tmp_path / "proc/self").mkdir(parents=True)
    meminfo = f"MemTotal: {1000 << 10} kB\nMemFree: {100 << 10} kB\nMemAvailable: {600 << 10} kB\n"
    (tmp_path / "proc/meminfo").write_text(meminfo)
    return tmp_path


def write_group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


def test_this_machine_has_some() -> None:
    memory = read_memory()
    assert 0 < memory.available_bytes <= memory.total_bytes


def test_without_cgroups_the_machine_counts(root: Path) -> None:
    memory = read_memory(root)
    assert (memory.total_bytes, memory.available_bytes) == (1000 * MIB, 600 * MIB)
    assert memory.limited_by == "machine"


def test_the_tightest_group_above_us_counts_and_page_cache_is_free(root: Path) -> None:
    (root / "proc/self/cgroup").write_text("0::/a/b\n")
    groups = root / "sys/fs/cgroup"
    write_group(
        groups / "a",
        memory__max=str(500 * MIB),
        memory__current=str(450 * MIB),
        memory__stat=f"inactive_file {150 * MIB}",
    )
    write_group(groups / "a/b", memory__max="max", memory__current="1")
    memory = read_memory(root)
    assert (memory.total_bytes, memory.available_bytes) == (500 * MIB, 200 * MIB)
    assert memory.limited_by.endswith("/a")


def test_in_a_container_the_mount_itself_is_our_group(root: Path) -> None:
    (root / "proc/self/cgroup").write_text("0::/../../outside\n")
    write_group(root / "sys/fs/cgroup", memory__max=str(300 * MIB), memory__current=str(100 * MIB))
    assert read_memory(root).available_bytes == 200 * MIB


def test_version_1_groups_count_too_and_no_limit_is_no_limit(root: Path) -> None:
    (root / "proc/self/cgroup").write_text("5:cpu:/x\n4:memory:/x\n")
    group = root / "sys/fs/cgroup/memory/x"
    write_group(group, memory__limit_in_bytes=str(2**63 - 4096), memory__usage_in_bytes="0")
    assert read_memory(root).limited_by == "machine"
    write_group(group, memory__limit_in_bytes=str(50 * MIB), memory__usage_in_bytes=str(60 * MIB))
    assert read_memory(root).available_bytes == 0
