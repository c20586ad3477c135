"""The other processes of a model that several devices compute: they end with this worker, and it with them.

    this worker, rank 0 ──── plans, sums ───► rank 1, rank 2, …       python -m headway.services.rank
             └─ their standard input: settings in one line, and then nothing; its end is this worker's

A model with a rank missing computes nothing. If one ends, a step that runs fails with a message that says
which and how; whatever happens, this process is gone ``GRACE_SECONDS`` later, and its jobs move on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import structlog
import torch

from headway.engine.checkpoint import open_checkpoint
from headway.engine.errors import ModelError
from headway.engine.fused_loading import GpuSettings
from headway.engine.interfaces import Runner
from headway.engine.rank_group import RankGroup, meeting_socket
from headway.engine.ranked_loading import RankSettings, load_rank
from headway.engine.ranked_runner import ranked
from headway.engine.shard import Shard

GRACE_SECONDS: Final = 10.0
"""For the engine to fail by itself, and the worker to hand its jobs back. A GPU may wait for a lost rank for
ever."""

WHOLE_BYTES: Final = GpuSettings()

COMMAND: Final = (sys.executable, "-m", "headway.services.rank")


@dataclass(frozen=True, slots=True)
class RankTask:
    """What one rank is told, in JSON."""

    rank: int
    size: int
    port: int
    model: str
    """A path."""
    device: str
    settings: dict[str, Any]
    gpu: dict[str, Any]


class Ranks:
    """Processes of ranks 1 and up, watched by a thread each."""

    def __init__(
        self,
        tasks: list[RankTask],
        *,
        end: Callable[[str], None] | None = None,
        command: tuple[str, ...] = COMMAND,
    ) -> None:
        """Start them. ``end`` is called with the reason when one is lost; by default this process ends."""
        self._end = end or _end_soon
        self._reason: str | None = None
        self._is_lost = threading.Event()
        self._is_closed = False
        self.processes = [_start(task, command) for task in tasks]
        for task, process in zip(tasks, self.processes, strict=True):
            threading.Thread(
                target=self._watch, args=(task, process), name=f"headway-rank-{task.rank}", daemon=True
            ).start()

    def lost(self, *, wait_seconds: float = 0.0) -> str | None:
        """Who has ended, in words; None: nobody, not even in so many seconds."""
        if wait_seconds:
            self._is_lost.wait(wait_seconds)
        return self._reason

    def close(self) -> None:
        """Let them end: nothing more will be told them."""
        self._is_closed = True
        for process in self.processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self.processes:
            process.wait()

    def _watch(self, task: RankTask, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        if self._is_closed or self._reason is not None:
            return
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self._reason = (
            f"rank {task.rank} of {task.size} of this model (process {process.pid}, {task.device}) ended "
            f"with {how}; the worker cannot compute without it and ends, and its jobs move on"
        )
        self._is_lost.set()
        self._end(self._reason)


@dataclass(frozen=True, slots=True)
class RankedModel:
    """Rank 0's runner and its company."""

    runner: Runner
    kernels: str
    """What computes, in words."""
    ranks: Ranks
    group: RankGroup

    def close(self) -> None:
        """End the others; nothing can be computed afterwards."""
        self.ranks.close()
        self.group.close()


def load_ranked(
    model: Path,
    size: int,
    device: torch.device,
    settings: RankSettings,
    *,
    gpu: GpuSettings = WHOLE_BYTES,
    end: Callable[[str], None] | None = None,
) -> RankedModel:
    """Start ``size`` - 1 more processes and load a part of the model in each.

    On GPUs each takes the next device. ModelError: too few, or the model cannot be cut so. ``end``: see
    ``Ranks``.
    """
    checkpoint = open_checkpoint(model)
    Shard(0, size).config(checkpoint.config)  # before anything is started for it
    if device.type == "cuda" and (device.index or 0) + size > torch.cuda.device_count():
        raise ModelError(
            f"--tensor-parallel {size} takes {size} GPUs, and there are {torch.cuda.device_count()}"
        )
    if device.type == "cuda":
        torch.cuda.set_device(_device_of(device, 0))
    # Interfaces other than the loopback may be named after a host that cannot be reached.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with meeting_socket() as meeting:
        port = int(meeting.getsockname()[1])
        tasks = [
            RankTask(rank, size, port, str(model), _device_of(device, rank), asdict(settings), asdict(gpu))
            for rank in range(1, size)
        ]
        ranks = Ranks(tasks, end=end)
        try:
            group = RankGroup(0, size, port, device, listen_fd=os.dup(meeting.fileno()))
        except BaseException:
            ranks.close()
            raise
    try:
        runner, kernels = load_rank(checkpoint, group, torch.device(_device_of(device, 0)), settings, gpu)
    except BaseException:
        ranks.close()
        group.close()
        raise
    words = f"{kernels.rpartition(', rank')[0]}, {size} ranks"
    return RankedModel(ranked(runner, group, ranks.lost), words, ranks, group)


def _device_of(device: torch.device, rank: int) -> str:
    return f"{device.type}:{(device.index or 0) + rank}" if device.type == "cuda" else device.type


def _start(task: RankTask, command: tuple[str, ...]) -> subprocess.Popen[bytes]:
    # A session of its own: the terminal's Ctrl-C is for the worker, which drains first.
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None
    process.stdin.write(json.dumps(asdict(task)).encode() + b"\n")
    process.stdin.flush()
    return process


def _end_soon(reason: str) -> None:
    structlog.get_logger("headway").error("rank_lost", reason=reason)
    time.sleep(GRACE_SECONDS)
    os._exit(1)
