"""Whether a worker's memory grows: real jobs of every kind for half an hour, its RSS every few seconds.

A server and a worker of their own, with a real model; clients post prompts of mixed lengths, sampled and
greedy, with log-probabilities and without, several choices, cancels in the middle, and readers who leave. The
growth is the slope of the lower envelope of the RSS (the least of each minute) by least squares, over the
second half of the time: until then rings of bounded length fill up (the last steps, the last 4,096
requests), some 15 MB. The bound is the weights as they are kept, the KV pool, and 600 MB. Exit code 1 when
the RSS passes the bound or the second half grows by more than --limit.

    .venv/bin/python ops/bench/memory_soak.py [--minutes 30] [--warm-up 3] [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import urlopen

import uvloop
from stream_cost import configured_server, ended, free_port

from headway.queueing.client import Client

MODEL: Final = "smollm2-135m"
KV_CACHE_BYTES: Final = 192 << 20
"""Small, so that all of it has been touched when the warm-up is over."""
BESIDE_BYTES: Final = 600 * 10**6
"""What a worker may take beside its weights and its KV pool."""
WORDS: Final = [
    "the",
    "river",
    "went",
    "on",
    "past",
    "mill",
    "and",
    "meadow",
    "while",
    "nobody",
    "in",
    "the",
    "town",
    "knew",
    "what",
    "it",
    "had",
    "seen",
]
SAMPLE_SECONDS: Final = 2.0
START_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Soak:
    """What came of it. Sizes are bytes."""

    minutes: float
    jobs: int
    tokens: int
    rss_first: int
    """Least of the first minute after the warm-up."""
    rss_last: int
    rss_most: int
    growth: int
    """Slope of the minutes' least values, over the second half of the time."""
    weights: int
    bound: int
    least: tuple[int, ...]
    """Of each minute."""

    @property
    def is_within(self) -> bool:
        """Whether the bound held."""
        return self.rss_most <= self.bound


def rss_bytes(pid: int) -> int:
    """Resident memory of a process, mapped files included."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


def growth_bytes(least: Sequence[int]) -> int:
    """The rise of a straight line through the minutes' least values, from the first minute to the last."""
    if len(least) < 2:
        return 0
    slope, _ = statistics.linear_regression(range(len(least)), least)
    return round(slope * (len(least) - 1))


class Load:
    """Clients who post jobs one after another until told to stop."""

    def __init__(self, url: str, clients: int, seed: int) -> None:
        self._url = url
        self._clients = clients
        self._rng = random.Random(seed)
        self.jobs = 0
        self.tokens = 0

    async def run(self, until: float) -> None:
        """Post, read, cancel and leave until then, on the monotonic clock."""
        async with Client.connect(self._url) as client:
            await asyncio.gather(*(self._one(client, until) for _ in range(self._clients)))

    async def _one(self, client: Client, until: float) -> None:
        while time.monotonic() < until:
            sampling = self._sampling()
            prompt = " ".join(self._rng.choices(WORDS, k=self._rng.choice((5, 40, 200, 600))))
            job_id = (await client.submit(model=MODEL, prompt=prompt, sampling=sampling)).job_id
            self.jobs += 1
            leaves_after = self._rng.choice((None, None, None, 5))
            seen = 0
            async for event in client.stream(job_id):
                seen += len(getattr(event, "token_ids", ()))
                if leaves_after is not None and seen >= leaves_after:
                    break
            self.tokens += seen
            if leaves_after is not None and self._rng.random() < 0.7:
                await client.cancel(job_id)

    def _sampling(self) -> dict[str, Any]:
        rng = self._rng
        sampling: dict[str, Any] = {"max_tokens": rng.choice((1, 16, 64, 160)), "temperature": 0}
        if rng.random() < 0.4:
            sampling |= {"temperature": 0.9, "top_p": 0.95, "seed": rng.getrandbits(31)}
        if rng.random() < 0.2:
            sampling |= {"logprobs": 5}
        if rng.random() < 0.2:
            sampling |= {"frequency_penalty": 0.5, "repetition_penalty": 1.1}
        if rng.random() < 0.15:
            sampling |= {"n": 3}
        return sampling


async def watch(pid: int, until: float) -> list[tuple[float, int]]:
    """The RSS over time."""
    seen: list[tuple[float, int]] = []
    while time.monotonic() < until:
        seen.append((time.monotonic(), rss_bytes(pid)))
        await asyncio.sleep(SAMPLE_SECONDS)
    return seen


def start_worker(url: str, port: int, options: argparse.Namespace, log: Path, stack: ExitStack) -> int:
    """A worker that is ready; its pid."""
    command = [sys.executable, "-m", "headway.services.cli", "worker", "--redis-url", url, "--model", MODEL]
    command += ["--kv-cache", str(KV_CACHE_BYTES), "--metrics-port", str(port), *options.worker_options]
    with log.open("wb") as file:
        process = stack.enter_context(ended(subprocess.Popen(command, stdout=file, stderr=file)))
    give_up = time.monotonic() + START_SECONDS
    while time.monotonic() < give_up and process.poll() is None:
        with contextlib.suppress(URLError, OSError), urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
            return process.pid
        time.sleep(0.2)
    raise SystemExit(f"the worker is not ready: {log.read_text()[-2000:]}")


async def soak(url: str, pid: int, options: argparse.Namespace, weights: int) -> Soak:
    """Load and watch; what was seen."""
    warm = time.monotonic() + 60 * options.warm_up
    until = warm + 60 * options.minutes
    load = Load(url, options.clients, options.seed)
    seen, _ = await asyncio.gather(watch(pid, until), load.run(until))
    minutes: dict[int, list[int]] = {}
    for at, rss in seen:
        if at >= warm:
            minutes.setdefault(int((at - warm) // 60), []).append(rss)
    least = [min(values) for values in minutes.values()]
    most = max(rss for _, rss in seen)
    bound = weights + KV_CACHE_BYTES + BESIDE_BYTES
    return Soak(
        options.minutes,
        load.jobs,
        load.tokens,
        least[0],
        least[-1],
        most,
        growth_bytes(least[len(least) // 2 :]),
        weights,
        bound,
        tuple(least),
    )


def show(report: Soak) -> None:
    """Print the figures."""
    sizes = {name: value for name, value in asdict(report).items() if name != "least"}
    megabytes = {name: value / 1e6 for name, value in sizes.items()}
    print(f"{report.minutes:g} minutes, {report.jobs} jobs, {report.tokens} tokens read")
    print(
        f"RSS, MB: first minute {megabytes['rss_first']:.0f}, last {megabytes['rss_last']:.0f}, "
        f"most {megabytes['rss_most']:.0f}; growth of the second half {megabytes['growth']:+.1f}"
    )
    print("least of each minute, MB: " + " ".join(f"{least / 1e6:.0f}" for least in report.least))
    print(
        f"bound, MB: {megabytes['bound']:.0f} (weights {megabytes['weights']:.0f}, "
        f"KV {KV_CACHE_BYTES / 1e6:.0f}, beside {BESIDE_BYTES / 1e6:.0f})"
    )


def main() -> int:
    """Measure, print, and compare with the bounds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument(
        "--warm-up", type=float, default=3.0, help="minutes before the first value that counts"
    )
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--weights-mb", type=int, default=97, help="of the model, as `auto` keeps them")
    parser.add_argument("--limit", type=float, default=10.0, help="MB that it may grow in the second half")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("worker_options", nargs="*", help="further options of the worker, after --")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headway-") as folder, ExitStack() as stack:
        server = configured_server(Path(folder), stack)
        log = Path(folder) / "worker.log"
        pid = start_worker(server.url, free_port(), options, log, stack)
        report = uvloop.run(soak(server.url, pid, options, options.weights_mb * 10**6))
    print(json.dumps(asdict(report), indent=2)) if options.json else show(report)
    is_flat = report.growth <= options.limit * 10**6
    if not (is_flat and report.is_within):
        print("the worker's memory " + ("grows" if not is_flat else "passes its bound"), file=sys.stderr)
    return 0 if is_flat and report.is_within else 1


if __name__ == "__main__":
    sys.exit(main())
