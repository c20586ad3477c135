"""Does a reader that stops reading slow anybody else down? Compares two arms in one run.

Both arms post the same jobs: some streams that are read as they come, and some more. In the calm arm those
are read too; in the stalled arm their connections stay open and nobody reads them. Rounds alternate, and the
medians over all rounds are compared: step time (the worker's own histogram) and the ITL of the streams that
are read in both arms. Exit code 1 when a ratio is above the limit.

    make bench-stalled            or    .venv/bin/python ops/bench/stalled_reader.py --rounds 6
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

from headway.services.percentile import percentile

ROOT = Path(__file__).resolve().parent.parent.parent
HEADWAY = ROOT / ".venv/bin/headway"
STEP_METRIC = "headway_step_seconds"


@dataclass
class Arm:
    """What one arm measured over all its rounds."""

    gaps_seconds: list[float] = field(default_factory=list[float])
    step_seconds: float = 0.0
    steps: int = 0

    @property
    def step_mean_seconds(self) -> float:
        """Mean step time."""
        return self.step_seconds / max(1, self.steps)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def service(model: str) -> Iterator[tuple[int, int]]:
    """A whole service of its own; yields the gateway's port and the worker's metrics port."""
    port, metrics_port = free_port(), free_port()
    with tempfile.TemporaryDirectory() as state:
        command = [str(HEADWAY), "up", "--port", str(port), "--metrics-port", str(metrics_port)]
        command += ["--model", model, "--state-dir", state]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            wait_ready(state, process)
            yield port, metrics_port
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)


def wait_ready(state: str, process: subprocess.Popen[bytes]) -> None:
    """Return when `headway status` says ready; raise when the service ended instead."""
    while process.poll() is None:
        status = subprocess.run(
            [HEADWAY, "status", "--json", "--state-dir", state], capture_output=True, check=False
        )
        if status.returncode == 0 and json.loads(status.stdout)["ready"]:
            return
        time.sleep(0.2)
    raise SystemExit("the service ended before it was ready")


def step_totals(metrics_port: int) -> tuple[float, int]:
    """Sum and count of the worker's step-time histogram."""
    with urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=5) as reply:
        text = reply.read().decode()
    totals = dict(re.findall(rf"^{STEP_METRIC}_(sum|count)(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE))
    return float(totals["sum"]), int(float(totals["count"]))


async def post(
    port: int, model: str, number: int, tokens: int, *, logprobs: int | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Start one streaming completion; the small receive buffer makes a stalled reader felt soon."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=connection, limit=4096)
    request = {
        "model": model,
        "prompt": f"Story number {number}. Once upon a time, in a town by the sea,",
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "logprobs": logprobs,
    }
    body = json.dumps(request).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n"
    writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + body)
    await writer.drain()
    return reader, writer


async def read_gaps(reader: asyncio.StreamReader) -> list[float]:
    """Read a stream to its end; the times between its events, in seconds."""
    gaps: list[float] = []
    last: float | None = None
    async for line in reader:
        if line.startswith(b"data: [DONE]"):
            return gaps
        if line.startswith(b"data: "):
            now = time.perf_counter()
            if last is not None:
                gaps.append(now - last)
            last = now
    raise SystemExit("a stream ended without [DONE]")


async def run_round(
    port: int, model: str, read: int, extra: int, tokens: int, *, stalled: bool
) -> list[float]:
    """Post all jobs, read the first ``read`` of them; the extra ones are read too, or left alone."""
    # Logprobs make the extra streams large enough to fill every buffer on the way.
    streams = [
        await post(port, model, number, tokens, logprobs=None if number < read else 5)
        for number in range(read + extra)
    ]
    read_in_both = [asyncio.create_task(read_gaps(reader)) for reader, _ in streams[:read]]
    others = [] if stalled else [asyncio.create_task(read_gaps(reader)) for reader, _ in streams[read:]]
    gaps = [gap for task in read_in_both for gap in await task]
    for task in others:
        await task
    # Let the jobs that nobody reads finish too: both arms then end in the same state.
    await asyncio.sleep(0.5)
    for _, writer in streams:
        writer.close()
    return gaps


def measure(options: argparse.Namespace) -> dict[str, Arm]:
    """Alternate the arms over all rounds, after one warm-up round that is thrown away."""
    arms = {"calm": Arm(), "stalled": Arm()}
    with service(options.model) as (port, metrics_port):
        served = options.model.split(":")[0]
        work = (port, served, options.read, options.extra, options.tokens)
        asyncio.run(run_round(*work, stalled=False))
        for number in range(options.rounds * 2):
            name = ("calm", "stalled")[(number + number // 2) % 2]  # calm stalled stalled calm ...
            before = step_totals(metrics_port)
            arms[name].gaps_seconds += asyncio.run(run_round(*work, stalled=name == "stalled"))
            after = step_totals(metrics_port)
            arms[name].step_seconds += after[0] - before[0]
            arms[name].steps += after[1] - before[1]
    return arms


def report(arms: dict[str, Arm], limit: float) -> bool:
    """Print the table; whether every ratio is within the limit."""
    calm, stalled = arms["calm"], arms["stalled"]

    rows = [
        ("step time, mean", calm.step_mean_seconds, stalled.step_mean_seconds),
        ("ITL, median", percentile(calm.gaps_seconds, 50), percentile(stalled.gaps_seconds, 50)),
        ("ITL, mean", statistics.fmean(calm.gaps_seconds), statistics.fmean(stalled.gaps_seconds)),
        ("ITL, P99", percentile(calm.gaps_seconds, 99), percentile(stalled.gaps_seconds, 99)),
    ]
    print(f"{'':18}{'calm':>10}{'stalled':>10}{'ratio':>8}")
    for name, before, after in rows:
        print(f"{name:18}{before * 1e3:8.2f}ms{after * 1e3:8.2f}ms{after / before:8.3f}")
    return all(after / before <= limit for name, before, after in rows if name != "ITL, P99")


def main() -> int:
    """Run both arms and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=6, help="per arm")
    parser.add_argument("--read", type=int, default=6, help="streams that are read in both arms")
    parser.add_argument("--extra", type=int, default=4, help="streams that are stalled in one arm")
    parser.add_argument("--tokens", type=int, default=384, help="tokens per answer")
    parser.add_argument("--limit", type=float, default=1.05)
    options = parser.parse_args()
    os.chdir(ROOT)
    return 0 if report(measure(options), options.limit) else 1


if __name__ == "__main__":
    sys.exit(main())
