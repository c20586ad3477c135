"""One more process of a model that several devices compute: started by a worker, never by hand."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import IO

from headway.services.ranks import RankTask


def main() -> int:
    """Load a part of the model and follow rank 0 until it is gone. 1: for another reason, told on stderr."""
    # The worker gets these and drains; it needs every rank until the end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    task = RankTask(**json.loads(sys.stdin.buffer.readline()))
    threading.Thread(target=_end_with, args=(sys.stdin.buffer,), name="headway-tether", daemon=True).start()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

    import torch

    from headway.engine.checkpoint import open_checkpoint
    from headway.engine.errors import EngineError
    from headway.engine.fused_loading import GpuSettings
    from headway.engine.rank_group import RankGroup
    from headway.engine.ranked_loading import RankSettings, load_rank
    from headway.engine.ranked_runner import Follower

    device = torch.device(task.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        group = RankGroup(task.rank, task.size, task.port, device)
        settings, gpu = RankSettings(**task.settings), GpuSettings(**task.gpu)
        runner, _ = load_rank(open_checkpoint(Path(task.model)), group, device, settings, gpu)
        Follower(runner, group).follow()
    except (EngineError, RuntimeError) as error:
        name = f"rank {task.rank} of {task.size} on {task.device}"
        print(f"headway: {name} ends: {error}", file=sys.stderr)
    return 1


def _end_with(worker: IO[bytes]) -> None:
    """Its input ends with the worker, however that ends; this process may wait for a device for ever."""
    worker.read()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
