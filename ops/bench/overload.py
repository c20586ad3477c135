"""Does goodput hold under three times the load that the service can bear? Everything real, from HTTP to SSE.

    .venv/bin/python ops/bench/overload.py                        about 9 minutes
    .venv/bin/python ops/bench/overload.py --seconds 60 --step-seconds 12 --points 5

A whole service runs: server, gateway, one worker of the demo model, each as by default. Each request brings
its limit as a deadline (X-Deadline), as a client does that has one; within the limits is what is answered
in whole before it, with each token after the first in time. First ``headway bench`` looks for the rate of
most goodput, then FACTOR times that goodput comes, as Poisson arrivals, for --seconds. Reported are goodput
in windows of ten seconds beside the peak, how long it took to be refused at the door (429, 503: this has a
limit) and to be given up by a worker (504, for a deadline out of reach or past), and the memory of each
process.

Memory is judged where the overload lasts three minutes or more; where it was not, the verdict says so.
Ends with 1 if a limit is missed or nothing could be measured, with 2 if the client was the bottleneck: then
the figures are not the service's.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from overload_figures import Limits, MemorySeries, figures_of, lines_of, peak_of
from reader_service import Process, Service, free_port

from headway.services.errors import UsageError
from headway.services.units import parse_duration

MODEL: Final = "smollm2-135m"
FACTOR: Final = 3.0
SAMPLE_SECONDS: Final = 1.0
MEASURED_CODES: Final = (0, 4)
"""Of ``headway bench``: measured, and measured with a client that was the bottleneck."""


class Bench:
    """``headway bench`` against one gateway, with the same work and limits each time."""

    def __init__(self, port: int, worker_port: int, folder: Path, options: argparse.Namespace) -> None:
        self._folder = folder
        self._limits: Limits = options.limits
        self._common = ["--url", f"http://127.0.0.1:{port}", "--worker", f"http://127.0.0.1:{worker_port}"]
        self._common += ["--prompt-tokens", f"{options.prompt_tokens}", "--length-spread", "0.3"]
        self._common += ["--answer-tokens", f"{options.answer_tokens}", "--drain", "20s"]
        self._common += ["--seed", f"{options.seed}", *self._limits.options()]

    def run(self, name: str, *arguments: str) -> dict[str, Any]:
        """One result as JSON. Exits with what the command said where nothing was measured."""
        file = self._folder / f"{name}.json"
        command = [sys.executable, "-m", "headway.services.cli", "bench", *self._common, *arguments]
        code = subprocess.run([*command, "--json", str(file)], check=False).returncode
        if code not in MEASURED_CODES:
            raise SystemExit(f"headway bench ended with {code}")
        result: dict[str, Any] = json.loads(file.read_text())
        return result


class MemoryWatch:
    """Reads the resident memory of processes once a second, in a thread of its own."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self._processes = processes
        self._over = threading.Event()
        self.began_unix = 0.0
        self.ended: str | None = None
        """The process that ended while it was watched."""
        self.series = MemorySeries({process.name: [] for process in processes})

    @contextmanager
    def watching(self) -> Generator[MemorySeries]:
        """While the block runs. Exits if a process ended: the figures would be another service's."""
        self.began_unix = time.time()
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield self.series
        finally:
            self._over.set()
            thread.join()
        if self.ended is not None:
            raise SystemExit(f"the {self.ended} ended in the middle of the overload: nothing is concluded")

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            at = time.time()
            for process in self._processes:
                try:
                    sample = (at, process.rss_bytes(), process.cpu_seconds())
                except (SystemExit, OSError):  # in a thread neither would be seen
                    self.ended = process.name
                    return
                self.series.samples[process.name].append(sample)


def measure(service: Service, worker_port: int, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The peak, then the overload."""
    bench = Bench(service.port, worker_port, folder, options)
    step = ["--warmup", "10s", "--duration", f"{options.step_seconds:g}s"]
    search = ["--rate", f"{options.rate:g}", "--find-knee", "--most-points", f"{options.points}"]
    sweep = bench.run("sweep", *search, *step)
    try:
        peak = peak_of(sweep)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    print(f"peak of goodput: {peak.goodput:.2f} requests/s, at {peak.rate:g}/s", flush=True)
    offered = FACTOR * peak.goodput
    load = ["--rate", f"{offered:.4g}", "--warmup", "10s", "--duration", f"{options.seconds:g}s"]
    with MemoryWatch(service.processes).watching() as memory:
        overload = bench.run("overload", *load)
    return figures_of(sweep, overload, memory, options.limits)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; ends with exit code 2 and a message for a wrong one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300.0, help="of the overload")
    parser.add_argument("--step-seconds", type=float, default=20.0, help="of each rate of the search")
    parser.add_argument("--points", type=int, default=6, help="rates that the search tries at most")
    parser.add_argument("--rate", type=float, default=4.0, help="where the search begins, requests a second")
    parser.add_argument("--prompt-tokens", type=int, default=180)
    parser.add_argument("--answer-tokens", type=int, default=64)
    parser.add_argument("--ttft", help="limit of the first token; default: none but the deadline")
    parser.add_argument("--tpot", default="100ms", help="limit of the mean time of each further token")
    parser.add_argument("--deadline", default="6s", help="limit of the whole answer: what requests bring")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worker", default="", help="more options of the worker, as at a shell")
    parser.add_argument("--json", type=Path, help="write all figures")
    options = parser.parse_args(arguments)
    try:
        ttft = None if options.ttft is None else parse_duration(options.ttft)
        options.limits = Limits(ttft, parse_duration(options.tpot), parse_duration(options.deadline))
    except (ValueError, UsageError) as error:
        parser.error(str(error))
    if min(options.seconds, options.step_seconds, options.rate) <= 0 or options.points < 1:
        parser.error("times, rates and points are above 0")
    return options


def main() -> int:
    """0, 1 for a missed limit, 2 where the client was the bottleneck."""
    options = parse()
    # Told to end, it ends what it started: the default would leave a service behind that takes the cores.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        service = Service(folder, stack)
        port = free_port()
        service.add(
            "worker", "worker", "--model", MODEL, "--metrics-port", str(port), *options.worker.split()
        )
        service.wait_for(port, "/readyz")
        figures = measure(service, port, folder, options)
    print("\n".join(lines_of(figures)))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return {"held": 0, "missed": 1}.get(figures["verdict"], 2)


if __name__ == "__main__":
    sys.exit(main())
