"""Where a worker computes: as many threads as it has cores, each on its own only if asked to."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from headway.services.children import worker_command
from headway.services.errors import UsageError
from headway.services.memory import Memory
from headway.services.placement import Placement, place, stay
from headway.services.preflight import share_out
from headway.services.settings import UpSettings

UP = UpSettings(state_dir=Path("/nowhere"), model="scripted")


def test_threads_are_the_cores_that_are_allowed_and_run_anywhere() -> None:
    assert place(None, {0, 2, 5}, is_pinned=False) == Placement(3, None, None)
    assert str(place(8, {0, 2}, is_pinned=False)) == "8, not pinned"


def test_pinned_threads_leave_the_first_cores_to_io() -> None:
    found = place(2, {1, 2, 3, 7}, is_pinned=True)
    assert found == Placement(2, (3, 7), frozenset({1, 2, 3}))
    assert str(found) == "2, pinned to cores 3, 7; I/O on 1-3"


def test_where_every_core_computes_io_runs_anywhere() -> None:
    found = place(None, {0, 1, 2}, is_pinned=True)
    assert found == Placement(3, (0, 1, 2), None)
    assert str(found) == "3, pinned to cores 0-2"


def test_more_pinned_threads_than_cores_are_refused() -> None:
    with pytest.raises(UsageError, match="3 threads cannot be pinned to 2 cores"):
        place(3, {0, 1}, is_pinned=True)


def test_staying_is_for_the_calling_thread_and_those_that_it_starts() -> None:
    before = os.sched_getaffinity(0)
    core = min(before)
    seen: list[set[int]] = []

    def look() -> None:
        stay(Placement(1, (core,), frozenset({core})))
        child = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        child.start()
        child.join()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [{core}]
    assert os.sched_getaffinity(0) == before


def test_several_workers_of_one_up_cannot_pin() -> None:
    memory = Memory(1 << 40, 1 << 40, "machine")
    with pytest.raises(UsageError, match="to the same cores"):
        share_out(replace(UP, workers=2, pins_threads=True), memory, 4)
    assert share_out(replace(UP, pins_threads=True), memory, 4).pins_threads


def test_up_tells_its_workers() -> None:
    command = worker_command(replace(UP, pins_threads=True, keeps_weights=False), "w", 0)
    assert {"--pin-threads", "--no-keep-weights"} <= set(command)
    command = worker_command(UP, "w", 0)
    assert {"--no-pin-threads", "--keep-weights"} <= set(command)
    assert command[command.index("--quantization") + 1] == "auto"
