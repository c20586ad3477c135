"""What streaming through the queue costs the engine: tokens per second with and without it, in turns.

Three arms take turns on the same requests (equal prompts, equal lengths), all on this machine:

    engine      an Engine stepped in this process; nothing is published
    streamed    a worker process and a server process; nobody reads
    read        the same, and another process reads every stream as it comes

A turn's figure comes from the steps' own times: from the first step in which every stream decodes to the
last one. A cost is the share of the engine's tokens per second that is missing, the median over rounds, each
against the engine's turns before and after. CPU time by thread and process says where it goes; on a machine
where others work too it says more than the wall clock. Exit code 1 when ``streamed`` costs more than --limit:
readers have machines of their own, as a rule, and here take their time from the same cores as the engine.

    .venv/bin/python ops/bench/stream_cost.py [--rounds 12] [--tokens 96] [--json]       about two minutes
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.request import urlopen

import uvloop

from headway.engine.values import RequestSpec, Sampling
from headway.queueing.client import Client
from headway.queueing.events import JobState, TokenEvent
from headway.services.embedded import EmbeddedOptions, EmbeddedServer, find_server_binary
from headway.services.model_host import ModelHost, build_engine
from headway.services.processor import processor_name
from headway.services.settings import WorkerSettings, default_cache_dir, served_name
from headway.services.state import StateDir
from headway.services.trace import chrome_trace
from headway.services.trace_file import fetch_trace

PROMPT: Final = "Once upon a time, in a town by the sea, there lived"
ARMS: Final = ("engine", "streamed", "read")
KV_CACHE: Final = 512 << 20
"""Of each of the two engines: nobody ever waits for memory."""
START_SECONDS: Final = 120.0
LOOK_SECONDS: Final = 0.25
"""How often somebody looks whether the jobs that nobody reads are done."""


@dataclass(frozen=True)
class Turn:
    """What one turn of an arm measured."""

    name: str
    rate: float
    """Tokens per second."""
    gaps: tuple[float, ...]
    """Seconds from each step to the next."""
    cpu_us: dict[str, float]
    """Per token, prefill and ends included; by thread or process."""


# -- what is measured ---------------------------------------------------------------------------------


class InProcess:
    """The engine alone, with a worker's settings."""

    def __init__(self, settings: WorkerSettings, streams: int) -> None:
        self._host: ModelHost = build_engine(settings)
        self._streams = streams
        self._rounds = 0
        self.processes = {"engine": os.getpid()}

    def run(self, tokens: int, *, is_read: bool = False) -> None:
        """Answer everybody; nobody can read."""
        assert not is_read
        self._rounds += 1
        prompt = self._host.model.tokenizer.encode(PROMPT, add_special_tokens=True)
        sampling = Sampling(temperature=0.0, ignore_eos=True)
        for number in range(self._streams):
            self._host.engine.add(RequestSpec(f"{self._rounds}-{number}", 0, prompt, sampling, tokens))
        while self._host.engine.has_work:
            self._host.engine.step(time.monotonic())

    def trace(self) -> dict[str, Any]:
        """The timeline, as the worker's page has it."""
        return chrome_trace([("engine", self._host.engine.timeline)])


class Streamed:
    """A server, a worker and a process of clients, all real."""

    def __init__(self, settings: WorkerSettings, streams: int, folder: Path, stack: ExitStack) -> None:
        self._streams = streams
        self._settings = settings
        server = configured_server(folder, stack)
        port = free_port()
        worker = [sys.executable, "-m", "headway.services.cli", "worker", "--redis-url", server.url]
        worker += ["--model", settings.model, "--dtype", settings.dtype, "--device", settings.device]
        worker += ["--kv-cache", str(settings.kv_cache_bytes), "--metrics-port", str(port)]
        worker += ["--max-sequences", str(settings.max_sequences)]
        self.log = folder / "worker.log"
        self._page = f"http://127.0.0.1:{port}"
        with self.log.open("wb") as log:
            self._worker = stack.enter_context(ended(subprocess.Popen(worker, stdout=log, stderr=log)))
        clients = [sys.executable, __file__, "--follow", server.url]
        self._clients = stack.enter_context(
            ended(subprocess.Popen(clients, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        )
        self.processes = {
            "worker": self._worker.pid,
            "server": server.pid,
            "clients": self._clients.pid,
        }

    def wait_ready(self) -> None:
        """Return when the worker takes jobs."""
        give_up = time.monotonic() + START_SECONDS
        while time.monotonic() < give_up and self._worker.poll() is None:
            try:
                with urlopen(f"{self._page}/readyz", timeout=5):
                    return
            except (URLError, OSError):
                time.sleep(0.2)
        raise SystemExit(f"the worker is not ready: {self.log.read_text()[-2000:]}")

    def run(self, tokens: int, *, is_read: bool) -> None:
        """Post everybody's job and wait for the answers."""
        assert self._clients.stdin is not None
        assert self._clients.stdout is not None
        model = served_name(self._settings.model)
        order = {"model": model, "streams": self._streams, "tokens": tokens, "is_read": is_read}
        print(json.dumps(order), file=self._clients.stdin, flush=True)
        answered = self._clients.stdout.readline()
        if not answered or int(answered) != self._streams * tokens:
            raise SystemExit(
                f"{answered!r} instead of {self._streams * tokens} tokens: {self.log.read_text()}"
            )

    def trace(self) -> dict[str, Any]:
        """The worker's timeline."""
        return fetch_trace(self._page)


@dataclass(frozen=True)
class Server:
    """Where the server is."""

    url: str
    pid: int


def configured_server(folder: Path, stack: ExitStack) -> Server:
    """The server that ``headway up`` embeds, with the same configuration."""
    state = StateDir(folder / "state")
    state.prepare()
    embedded = EmbeddedServer(state, EmbeddedOptions())
    embedded.write_config()
    command = [str(find_server_binary()), str(state.redis / "valkey.conf")]
    process = stack.enter_context(ended(subprocess.Popen(command, stdout=subprocess.DEVNULL)))
    stack.callback(embedded.tidy)
    return Server(embedded.url, process.pid)


@contextmanager
def ended(process: subprocess.Popen[Any]) -> Iterator[subprocess.Popen[Any]]:
    """The process, gone afterwards."""
    with process:
        try:
            yield process
        finally:
            process.terminate()
            if process.stdin is not None:
                process.stdin.close()
            process.wait(timeout=60)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# -- the process of clients ---------------------------------------------------------------------------


async def follow(url: str) -> None:
    """Carry out the orders that come line by line; for each, say how many tokens its answers have."""
    async with Client.connect(url) as client:
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(await answer(client, **json.loads(line)), flush=True)


async def answer(client: Client, *, model: str, streams: int, tokens: int, is_read: bool) -> int:
    """Post jobs, and read their streams or look now and then whether they are done."""
    sampling = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0}
    asked = [client.submit(model=model, prompt=PROMPT, sampling=sampling) for _ in range(streams)]
    jobs = [submitted.job_id for submitted in await asyncio.gather(*asked)]
    if is_read:
        return sum(await asyncio.gather(*(read(client, job) for job in jobs)))
    for job in jobs:
        while (await client.status(job)).state is not JobState.FINISHED:  # noqa: ASYNC110 - reading it would count
            await asyncio.sleep(LOOK_SECONDS)
    return sum([(await client.result(job)).usage.completion_tokens for job in jobs])


async def read(client: Client, job: str) -> int:
    """Read a stream to its end; its tokens."""
    events = [event async for event in client.stream(job)]
    return sum(len(event.token_ids) for event in events if isinstance(event, TokenEvent))


# -- measuring ----------------------------------------------------------------------------------------


def full_steps(trace: dict[str, Any], streams: int, after: int) -> tuple[list[float], int]:
    """When the steps began that were one decode of every stream; and the last step's number."""
    steps = {
        int(event["name"].split()[1]): event
        for event in trace["traceEvents"]
        if "sampled_tokens" in event.get("args", {})
    }
    full = {"new_tokens": streams, "sampled_tokens": streams}
    starts = [
        event["ts"] / 1e6
        for number, event in sorted(steps.items())
        if number > after and full.items() <= event["args"].items()
    ]
    if len(starts) < 2:
        raise SystemExit("the streams never all ran at once: give them more --tokens")
    return starts, max(steps)


def cpu_us(processes: dict[str, int]) -> dict[str, float]:
    """CPU time so far; a worker's by its loop's thread and all others."""
    spent: dict[str, float] = {}
    for name, pid in processes.items():
        for task in Path(f"/proc/{pid}/task").iterdir():
            part = name
            if name == "worker":
                part = "worker's loop" if int(task.name) == pid else "worker's engine"
            nanoseconds = int((task / "schedstat").read_text().split()[0])
            spent[part] = spent.get(part, 0.0) + nanoseconds / 1e3
    return spent


class Bench:
    """Both sides, and what their turns brought."""

    def __init__(self, alone: InProcess, streamed: Streamed, streams: int) -> None:
        self._alone = alone
        self._streamed = streamed
        self._streams = streams
        self._seen: dict[InProcess | Streamed, int] = {alone: 0, streamed: 0}

    def turn(self, name: str, tokens: int) -> Turn:
        """One arm's requests, from the first to the last token."""
        side = self._alone if name == "engine" else self._streamed
        before = cpu_us(side.processes)
        side.run(tokens, is_read=name == "read")
        spent = cpu_us(side.processes)
        starts, self._seen[side] = full_steps(side.trace(), self._streams, self._seen[side])
        gaps = tuple(after - before for before, after in itertools.pairwise(starts))
        each = self._streams * tokens
        cpu = {part: (spent[part] - before.get(part, 0.0)) / each for part in spent}
        return Turn(name, self._streams * len(gaps) / sum(gaps), gaps, cpu)

    def turns(self, rounds: int, tokens: int) -> list[Turn]:
        """The engine, then in each round both other arms with the engine after each."""
        for name in ARMS:
            self.turn(name, 8)  # thrown away
        turns = [self.turn("engine", tokens)]
        for number in range(rounds):
            for name in ("streamed", "read") if number % 2 else ("read", "streamed"):
                turns += [self.turn(name, tokens), self.turn("engine", tokens)]
        return turns


def measure(options: argparse.Namespace) -> list[Turn]:
    """Start everything, and take all turns."""
    settings = WorkerSettings(
        model=options.model,
        dtype=options.dtype,
        device=options.device,
        kv_cache_bytes=KV_CACHE,
        max_sequences=options.streams,
        cache_dir=default_cache_dir(),  # where a worker looks for its kernels, too
    )
    with tempfile.TemporaryDirectory(prefix="headway-") as folder, ExitStack() as stack:
        streamed = Streamed(settings, options.streams, Path(folder), stack)
        alone = InProcess(settings, options.streams)
        streamed.wait_ready()
        return Bench(alone, streamed, options.streams).turns(options.rounds, options.tokens)


def figures_of(turns: list[Turn]) -> dict[str, dict[str, Any]]:
    """By arm: rate, step, cost against the engine's turns before and after, and CPU time by part."""
    figures: dict[str, dict[str, Any]] = {}
    for name in ARMS:
        places = [place for place, turn in enumerate(turns) if turn.name == name]
        own = [turns[place] for place in places]
        figures[name] = {
            "tokens_per_second": round(statistics.median(turn.rate for turn in own), 1),
            "step_ms": round(1e3 * statistics.median(gap for turn in own for gap in turn.gaps), 3),
            "cpu_us_per_token": {
                part: round(statistics.median(turn.cpu_us[part] for turn in own), 1) for part in own[0].cpu_us
            },
        }
        if name != "engine":
            costs = sorted(
                1.0 - 2.0 * turns[place].rate / (turns[place - 1].rate + turns[place + 1].rate)
                for place in places
            )
            figures[name]["cost"] = round(statistics.median(costs), 4)
            figures[name]["costs"] = [round(cost, 4) for cost in costs]
    return figures


def machine(options: argparse.Namespace) -> dict[str, Any]:
    """What it ran on."""
    return {
        "cpu": processor_name(),
        "cores": len(os.sched_getaffinity(0)),
        "load": [round(load, 1) for load in os.getloadavg()],
        "python": platform.python_version(),
        "server": find_server_binary().name,
        "model": options.model,
        "dtype": options.dtype,
        "device": options.device,
        "streams": options.streams,
        "tokens": options.tokens,
        "rounds": options.rounds,
    }


def show(report: dict[str, Any]) -> None:
    """Print the tables."""
    print(", ".join(f"{name} {value}" for name, value in report["machine"].items()))
    print(f"{'':10}{'tokens/s':>10}{'step, ms':>10}{'cost':>8}   lowest to highest     µs of CPU per token")
    for name, arm in report["arms"].items():
        cost = (
            f"{arm['cost']:8.1%}   {arm['costs'][0]:+.1%} to {arm['costs'][-1]:+.1%}" if "cost" in arm else ""
        )
        cpu = ", ".join(f"{part} {spent:g}" for part, spent in arm["cpu_us_per_token"].items())
        print(f"{name:10}{arm['tokens_per_second']:10.1f}{arm['step_ms']:10.2f}{cost:33} {cpu}")


def main() -> int:
    """Measure, print, and compare with the goal."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=96, help="of each answer")
    parser.add_argument("--limit", type=float, default=0.05)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--follow", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.follow:
        uvloop.run(follow(options.follow))
        return 0
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is loaded, as the worker does
    report = {"machine": machine(options), "arms": figures_of(measure(options))}
    print(json.dumps(report, indent=2)) if options.json else show(report)
    cost = report["arms"]["streamed"]["cost"]
    if cost > options.limit:
        print(f"streaming costs {cost:.1%} of the engine's tokens per second", file=sys.stderr)
    return 1 if cost > options.limit else 0


if __name__ == "__main__":
    sys.exit(main())
