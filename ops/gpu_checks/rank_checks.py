"""One model over two devices: two processes, each with half of every layer, against one on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
from gpu_checks.engine_results import EngineCheck
from gpu_checks.engine_runs import Answers, answers_of
from gpu_checks.random_model import CUT, RandomCheckpoint
from gpu_checks.rank import BLOCKS, RankTask, specs

from headway.engine.kv_cache import block_bytes
from headway.engine.rank_group import meeting_socket
from headway.engine.torch_runner import TorchRunner

SIZE = 2
SECONDS = 120
"""For both processes to load torch, to compile, and to answer."""
ROOT = Path(__file__).resolve().parents[2]


def check_ranks(device: str) -> EngineCheck:
    """``device``: ``cuda`` or ``cpu``; of its kind each rank takes the next one."""
    expected = answers_of(_on_cpu(), specs())
    told = _told(device)
    different = [f"{name} is another" for name, tokens in expected.items() if told[name] != tokens]
    # Sums over two ranks are rounded otherwise: once in a while a choice between equals falls otherwise.
    problems = tuple(different) if len(different) > len(expected) // 8 else ()
    detail = f"{len(expected) - len(different)} of {len(expected)} equal"
    return EngineCheck("two ranks with half of the model each answer as one CPU", problems, detail)


def _on_cpu() -> TorchRunner:
    return TorchRunner.load(
        RandomCheckpoint(CUT, torch.device("cpu")),
        dtype="float32",
        kv_cache_bytes=BLOCKS * block_bytes(CUT, 16, torch.float32),
    )


def _told(device: str) -> Answers:
    with meeting_socket() as meeting:
        port, listening = int(meeting.getsockname()[1]), meeting.fileno()
        ranks = [
            _start(RankTask(rank, SIZE, port, device, listening if rank == 0 else None))
            for rank in range(SIZE)
        ]
    try:
        told, _ = ranks[0].communicate(timeout=SECONDS)
    finally:
        for rank in ranks:
            rank.kill()  # the other one waits for a plan for ever
            rank.wait()
    if ranks[0].returncode:
        raise RuntimeError(f"rank 0 ended with {ranks[0].returncode}: its error is above")
    return {name: tuple(tokens) for name, tokens in json.loads(told).items()}


def _start(task: RankTask) -> subprocess.Popen[str]:
    paths = [str(ROOT / "src"), str(ROOT / "ops"), os.environ.get("PYTHONPATH", "")]
    return subprocess.Popen(
        [sys.executable, "-m", "gpu_checks.rank", task.text],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "GLOO_SOCKET_IFNAME": "lo"},
        pass_fds=() if task.listening is None else (task.listening,),
    )
