"""What the queue costs its server: µs per token, submit, claim and finish; bytes per job; time to a claim.

Two servers of its own run side by side, one with a short backlog and one with a long one, and take turns: so
both meet the same neighbours, and their ratios say more than their figures. CPU time is the servers' own
(``INFO cpu``), functions' time is ``INFO commandstats``; both per operation, as the median over windows, with
the least window beside it. Exit code 1 when a goal is missed (--limit-* change them).

    .venv/bin/python ops/bench/queue_cost.py                    about two minutes; 10^3 against 10^6 jobs
    .venv/bin/python ops/bench/queue_cost.py --long 10000 --server path/to/valkey-server

The embedded Valkey is built with the C library's allocator, whose cost grows with a heap of 10^6 jobs: start
it with ``LD_PRELOAD=libjemalloc.so.2`` to see the queue's own growth.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from headway.queueing.functions import library
from headway.queueing.messages import Priority
from headway.queueing.redis_queue import RedisQueue
from headway.services.percentile import percentile

TAG: Final = "{tiny:0}"
TOKEN: Final = "f" * 32
OWNER: Final = f"{TOKEN}.1"
TENANTS: Final = 10
STREAMS: Final = 32
ROOM: Final = 8
"""Jobs per claim, as many as a worker takes at once."""
PIPELINED: Final = 20
BODY: Final = (
    b'{"model":"tiny","tenant":"t%d","messages":[{"role":"user","content":"' + b"x" * 200 + b'"}],'
    b'"sampling":{"max_tokens":256}}'
)
LIMITS: Final = (10**9, 86_400_000, 3_600_000, 10**14, 10**14)
"""Of a submit: jobs, idempotency ms, record ms, tokens, wait ms. Nothing is refused here."""
END: Final = b'{"reason":"stop","choices":[{"finish_reason":"stop","tail":""}],"usage":{},"error":null}'
ANSWER: Final = b'{"reason":"stop","choices":[{"text":"' + b"word " * 60 + b'"}],"usage":{},"error":null}'


def pack(*words: object) -> bytes:
    """One command as it travels."""
    texts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"".join([b"*%d\r\n" % len(texts), *(b"$%d\r\n%s\r\n" % (len(text), text) for text in texts)])


class Server:
    """A server process of our own, and a plain link to it: the client must not be what is measured."""

    def __init__(self, program: str, folder: Path) -> None:
        self.socket = folder / "bench.sock"
        command = [program, "--port", "0", "--unixsocket", str(self.socket), "--dir", str(folder)]
        command += ["--save", "", "--loglevel", "warning"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self._link = socket.socket(socket.AF_UNIX)
        for _ in range(500):
            try:
                self._link.connect(str(self.socket))
                break
            except OSError:
                time.sleep(0.01)
        self._replies = self._link.makefile("rb", 1 << 20)
        self.ask(pack("FUNCTION", "LOAD", "REPLACE", library()))
        self.claims: list[tuple[bytes, bytes]] = []
        """Keys and bodies that run, in the order in which they were claimed."""
        self.streams: list[bytes] = []
        self.tokens = 0
        self.numbers = 0

    def ask(self, *commands: bytes) -> list[Any]:
        """Several commands in one go."""
        self._link.sendall(b"".join(commands))
        return [self._reply() for _ in commands]

    def _reply(self) -> Any:
        line = self._replies.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"*":
            return [self._reply() for _ in range(int(rest))]
        if kind == b"$":
            return None if rest == b"-1" else self._replies.read(int(rest) + 2)[:-2]
        if kind == b"-":
            raise SystemExit(f"the server refused: {rest.decode()}")
        return rest

    def facts(self, section: str) -> dict[str, str]:
        """One section of INFO."""
        (reply,) = self.ask(pack("INFO", section))
        return dict(line.split(":", 1) for line in reply.decode().splitlines() if ":" in line)

    def cpu_us(self) -> float:
        """CPU time so far."""
        facts = self.facts("cpu")
        return 1e6 * (float(facts["used_cpu_user"]) + float(facts["used_cpu_sys"]))

    def function_us(self) -> float:
        """Time spent in functions so far."""
        facts = self.facts("commandstats").get("cmdstat_fcall", "usec=0,")
        return float(facts.split("usec=")[1].split(",")[0])

    # -- the moves ------------------------------------------------------------------------------------

    def submit(self, count: int) -> None:
        """Post jobs of all tenants in turn."""
        for first in range(0, count, PIPELINED):
            self.ask(*(self._submission(0) for _ in range(min(PIPELINED, count - first))))

    def fill(self, count: int) -> None:
        """Post jobs, nine out of ten of one tenant."""
        for first in range(0, count, 500):
            self.ask(*(self._submission(9) for _ in range(min(500, count - first))))

    def _submission(self, first_tenants_extra: int) -> bytes:
        self.numbers += 1
        tenant = max(0, self.numbers % (TENANTS * (1 + first_tenants_extra)) - TENANTS * first_tenants_extra)
        return pack("FCALL", "headway_submit", 1, TAG, f"job-{self.numbers:022}", BODY % tenant, *LIMITS)

    def claim(self, count: int) -> None:
        """Take jobs, a few at a time."""
        for _ in range(0, count, ROOM):
            arguments = (ROOM, TOKEN, 10**9, 30_000, 120_000, 300_000, 3_600_000)
            # A worker of its own for each call: with the same token a repeat would bring the same jobs.
            self.numbers += 1
            worker = f"w-{self.numbers}"
            (reply,) = self.ask(pack("FCALL", "headway_claim", 1, TAG, worker, *arguments))
            self.claims += [(item[0], item[4]) for item in reply[1:]]

    def emit(self, count: int) -> None:
        """One token for each of the streams, so many times."""
        while len(self.streams) < STREAMS:
            self.claim(ROOM)
            self.streams += [key for key, _ in self.claims]
            self.claims.clear()
        for _ in range(0, count, STREAMS):
            self.tokens += 1
            words: list[object] = ["FCALL", "headway_emit", 1, TAG]
            for key in self.streams[:STREAMS]:
                words += (key, OWNER, self.tokens - 1, f"{self.tokens}-0", 0, " word", 12345, "", "")
            self.ask(pack(*words))

    def finish(self, count: int) -> None:
        """End the jobs that were claimed first."""
        ending, self.claims = self.claims[:count], self.claims[count:]
        calls = [
            pack(
                *("FCALL", "headway_finish", 1, TAG, key, OWNER, 300_000, 3_600_000, "stop"),
                *(END, ANSWER, "", "", 60, 1, 64, 124, 0),
            )
            for key, _ in ending
        ]
        for first in range(0, len(calls), PIPELINED):
            self.ask(*calls[first : first + PIPELINED])


@dataclass
class Costs:
    """Per operation, window by window."""

    cpu_us: list[float] = field(default_factory=list[float])
    function_us: list[float] = field(default_factory=list[float])


Operation = Callable[[Server, int], None]
OPERATIONS: Final[dict[str, Operation]] = {
    "submit": Server.submit,
    "claim": Server.claim,
    "finish": Server.finish,
    "emit, per token": Server.emit,
}


def measure(servers: dict[str, Server], windows: int, per_window: int) -> dict[str, dict[str, Costs]]:
    """Costs by operation and server; the servers take turns."""
    costs = {operation: {name: Costs() for name in servers} for operation in OPERATIONS}
    for window in range(windows + 1):
        for name, server in servers.items():
            for operation, act in OPERATIONS.items():
                count = per_window * (4 if act is Server.emit else 1)
                function_us, cpu_us = server.function_us(), server.cpu_us()
                act(server, count)
                cpu_us = server.cpu_us() - cpu_us
                function_us = server.function_us() - function_us
                if window:  # the first one warms up
                    costs[operation][name].cpu_us.append(cpu_us / count)
                    costs[operation][name].function_us.append(function_us / count)
    return costs


async def claim_latency_ms(url: str, rounds: int) -> list[float]:
    """Milliseconds from a submit to the claim by a worker that was waiting, on an idle server."""
    producer, worker = RedisQueue(url), RedisQueue(url)
    found: list[float] = []
    posted = 0.0
    claimed = asyncio.Event()

    async def work() -> None:
        while len(found) < rounds:
            if await worker.claim("idle", "w", 1):
                found.append((time.perf_counter() - posted) * 1e3)
                claimed.set()
            else:
                await worker.wait("idle", "w", for_work=Priority.BATCH, timeout_seconds=2)

    working = asyncio.create_task(work())
    body = b'{"model":"idle","prompt":"x"}'
    for _ in range(rounds):
        await asyncio.sleep(random.uniform(0.005, 0.02))
        claimed.clear()
        posted = time.perf_counter()
        await producer.submit_body("idle", body)
        await claimed.wait()
    await working
    for queue in (producer, worker):
        await queue.close()
    return found


@contextmanager
def running(program: str, sizes: dict[str, int]) -> Iterator[tuple[dict[str, Server], dict[str, float]]]:
    """Servers with backlogs of these sizes, and what a waiting job takes on each, in bytes."""
    servers: dict[str, Server] = {}
    bytes_per_job: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="headway-") as folder:
        try:
            for name, jobs in sizes.items():
                place = Path(folder) / name
                place.mkdir()
                server = servers[name] = Server(program, place)
                before = int(server.facts("memory")["used_memory"])
                server.fill(jobs)
                bytes_per_job[name] = (int(server.facts("memory")["used_memory"]) - before) / jobs
            yield servers, bytes_per_job
        finally:
            for server in servers.values():
                server.process.kill()
                server.process.wait()


def report(options: argparse.Namespace) -> dict[str, Any]:
    """Measure everything."""
    sizes = {"short": options.short, "long": options.long}
    with running(options.server, sizes) as (servers, bytes_per_job):
        costs = measure(servers, options.windows, options.per_window)
        latency = asyncio.run(claim_latency_ms(f"unix://{servers['short'].socket}", options.latencies))
    return {
        "jobs": sizes,
        "bytes_per_waiting_job": {name: round(size) for name, size in bytes_per_job.items()},
        "body_bytes": len(BODY % 0),
        "us": {
            operation: {
                name: {
                    "cpu": round(statistics.median(cost.cpu_us), 2),
                    "cpu_least": round(min(cost.cpu_us), 2),
                    "function": round(statistics.median(cost.function_us), 2),
                }
                for name, cost in by_server.items()
            }
            for operation, by_server in costs.items()
        },
        "claim_latency_ms": {
            "p50": round(statistics.median(latency), 3),
            "p99": round(percentile(latency, 99), 3),
        },
    }


def missed(figures: dict[str, Any], options: argparse.Namespace) -> list[str]:
    """The goals that were not reached."""
    goals: list[tuple[str, float, float]] = [
        ("µs of CPU per token", figures["us"]["emit, per token"]["short"]["cpu"], options.limit_token_us),
        ("ms to a claim, P50", figures["claim_latency_ms"]["p50"], options.limit_claim_ms),
    ]
    for operation, by_server in figures["us"].items():
        growth = by_server["long"]["cpu"] / by_server["short"]["cpu"]
        goals.append((f"growth of {operation}", growth, options.limit_growth))
    return [f"{name}: {value:.2f}, the goal is {limit}" for name, value, limit in goals if value > limit]


def show(figures: dict[str, Any]) -> None:
    """Print the table."""
    short, long = (f"{jobs:,} jobs" for jobs in figures["jobs"].values())
    print(
        f"{'µs of server CPU':20}{short:>16}{'least':>8}{long:>18}{'least':>8}{'ratio':>8}{'in function':>20}"
    )
    for operation, by_server in figures["us"].items():
        few, many = by_server["short"], by_server["long"]
        print(
            f"{operation:20}{few['cpu']:16.2f}{few['cpu_least']:8.2f}{many['cpu']:18.2f}{many['cpu_least']:8.2f}"
            f"{many['cpu'] / few['cpu']:8.2f}{few['function']:12.2f}{many['function']:8.2f}"
        )
    size = figures["bytes_per_waiting_job"]["long"]
    print(f"{size} bytes per waiting job, of which {figures['body_bytes']} are its body")
    print(f"ms from submit to claim: {figures['claim_latency_ms']}")


def main() -> int:
    """Measure, print, and compare with the goals."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", default=shutil.which("redis-server"), help="the server's program")
    parser.add_argument("--short", type=int, default=1_000, help="jobs of the short backlog")
    parser.add_argument("--long", type=int, default=1_000_000, help="jobs of the long one")
    parser.add_argument("--windows", type=int, default=25)
    parser.add_argument("--per-window", type=int, default=400, help="operations in each")
    parser.add_argument("--latencies", type=int, default=200, help="submits timed up to their claim")
    parser.add_argument("--limit-token-us", type=float, default=5.0)
    parser.add_argument("--limit-claim-ms", type=float, default=2.0)
    parser.add_argument("--limit-growth", type=float, default=1.5)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    if options.server is None:
        raise SystemExit("redis-server is not installed: name a server's program with --server")
    figures = report(options)
    print(json.dumps(figures, indent=2)) if options.json else show(figures)
    goals = missed(figures, options)
    print(*goals, sep="\n", file=sys.stderr)
    return 1 if goals else 0


if __name__ == "__main__":
    sys.exit(main())
