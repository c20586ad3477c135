"""When each token was written: the server's own word to whoever listens, before any gateway has read it.

A worker's write and the hint that names its jobs are one atomic step of the server, so a process that does
nothing but listen has the time of the write to within its own wake-up. Run as a process of its own.

    python reader_hints.py redis-url file      listens until its standard input ends, then writes the file
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import redis

from headway.queueing.keys import HINT_PATTERN


def record(url: str, file: Path) -> None:
    """Listen, and write down for each job when it was named."""
    has_ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), has_ended.set()), daemon=True).start()
    heard: list[tuple[float, bytes]] = []
    with redis.Redis.from_url(url) as server, server.pubsub() as hints:
        hints.psubscribe(HINT_PATTERN)
        hints.get_message(timeout=5.0)
        print("listening", flush=True)
        while not has_ended.is_set():
            message = hints.get_message(timeout=0.2)
            if message is not None:
                heard.append((time.monotonic(), message["data"]))
    times: dict[str, list[float]] = {}
    for at, keys in heard:
        for key in keys.decode().split():
            times.setdefault(key, []).append(at)
    file.write_text(json.dumps(times))


if __name__ == "__main__":
    record(sys.argv[1], Path(sys.argv[2]))
