"""One of the processes of ``rank_checks``: rank 0 answers requests and tells what, the others follow it."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass

import torch
from gpu_checks import absent_grammars

absent_grammars.install()

from gpu_checks.engine_runs import answers_of  # noqa: E402  # after the stand-in
from gpu_checks.random_model import CUT, RandomCheckpoint  # noqa: E402

from headway.engine.fused_loading import GpuSettings  # noqa: E402
from headway.engine.kv_cache import block_bytes  # noqa: E402
from headway.engine.rank_group import RankGroup  # noqa: E402
from headway.engine.ranked_loading import RankSettings, load_rank  # noqa: E402
from headway.engine.ranked_runner import Follower, ranked  # noqa: E402
from headway.engine.values import RequestSpec, Sampling  # noqa: E402

BLOCKS = 100
"""Of 16 tokens: all requests at once."""


@dataclass(frozen=True, slots=True)
class RankTask:
    """What a process is told."""

    rank: int
    size: int
    port: int
    device: str
    listening: int | None = None
    """Rank 0's end of the meeting."""

    @property
    def text(self) -> str:
        """As one argument."""
        return json.dumps(asdict(self))


def specs() -> list[RequestSpec]:
    """Greedy answers of several lengths."""
    greedy = Sampling(temperature=0.0, ignore_eos=True)
    prompts = [tuple((7919 * at + 31 * i) % 250 for at in range(5 + 9 * i)) for i in range(8)]
    return [RequestSpec(f"r{i}", 0, prompt, greedy, 8 + i) for i, prompt in enumerate(prompts)]


def run(task: RankTask) -> None:
    """Load this rank's part; rank 0 prints the answers, another one ends when it is ended."""
    place = f"{task.device}:{task.rank}" if task.device == "cuda" else task.device
    device = torch.device(place)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    group = RankGroup(task.rank, task.size, task.port, device, listen_fd=task.listening)
    checkpoint = RandomCheckpoint(CUT, torch.device("cpu"))
    # A rank's share of a block is half as large.
    room = BLOCKS * block_bytes(CUT, 16, torch.float32) // task.size
    settings = RankSettings(dtype="float32", kv_cache_bytes=room)
    runner, _ = load_rank(checkpoint, group, device, settings, GpuSettings(max_sequences=8))
    if task.rank:
        Follower(runner, group).follow()
        return

    def lost(*, wait_seconds: float = 0.0) -> None:
        del wait_seconds  # whoever started both sees it when one ends

    told = answers_of(ranked(runner, group, lost), specs(), looks_ahead=device.type == "cuda")
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    run(RankTask(**json.loads(sys.argv[1])))
