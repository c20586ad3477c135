"""One more process of a model that several devices compute: started by a worker, never by hand."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Final

from headway.services.ranks import RankTask

FAREWELL_SECONDS: Final = 3.0
"""When the others are gone: for the worker to end too, which then is the reason and no news."""


def main() -> None:
    """Load a part of the model and follow rank 0 until the worker ends; any other end is told on stderr."""
    # The worker gets these and drains; it needs every rank until the end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    task = RankTask(**json.loads(sys.stdin.buffer.readline()))
    tether = threading.Thread(target=_end_with_worker, name="headway-tether", daemon=True)
    tether.start()
    try:
        _follow(task)
    except Exception as error:  # whatever it is, this process cannot go on, and the worker should say why
        tether.join(FAREWELL_SECONDS)
        name = f"rank {task.rank} of {task.size} on {task.device}"
        print(f"headway: {name} ends: {error}", file=sys.stderr, flush=True)
    # Threads that wait for a device, or for the input's end, need not end first.
    os._exit(1)


def _follow(task: RankTask) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

    import torch

    from headway.engine.checkpoint import open_checkpoint
    from headway.engine.fused_loading import GpuSettings
    from headway.engine.rank_group import RankGroup
    from headway.engine.ranked_loading import RankSettings, load_rank
    from headway.engine.ranked_runner import Follower

    device = torch.device(task.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    group = RankGroup(task.rank, task.size, task.port, device)
    settings, gpu = RankSettings(**task.settings), GpuSettings(**task.gpu)
    runner, _ = load_rank(open_checkpoint(Path(task.model)), group, device, settings, gpu)
    Follower(runner, group).follow()


def _end_with_worker() -> None:
    """Its input ends with the worker, however that ends; this process may wait for a device for ever."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
