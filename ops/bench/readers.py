"""Thousands of readers on one gateway process: is one lost, how late is a token, what does each take?

A real server, workers of the scripted model and one gateway, each a process. Processes of readers open the
streams over HTTP and check every answer to its last token against what the model says. A token's added
latency is the time from its write, as the server itself tells it, to the reader's socket. It is taken while
all streams are open: first with nobody else there, then with a console that watches and /metrics scraped
every two seconds. Memory is the gateway's growth over what it takes with its work done and nobody connected.
Last, readers of long answers stop reading: what each makes the gateway and the kernel hold is shown, and that
its answer comes whole when it reads on.

    make bench-readers            or    .venv/bin/python ops/bench/readers.py --streams 500 [--json]

Exit code 1 when a stream is cut, lost or wrong, or one of --limit-ms, --limit-kib is passed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from reader_figures import Window, figures, latencies, memory, show
from reader_service import Process, Service, ended
from reader_stalled import Held, stall
from reader_streams import Order
from reader_watchers import watch

FOLDER: Final = Path(__file__).resolve().parent
MODEL: Final = "scripted"
STALLED_MODEL: Final = "scripted-fast"
WARM_STREAMS: Final = 64
SPARE_FILES: Final = 256
"""Open files of a process beside its streams."""


class Readers:
    """The processes that read, and the one that hears when tokens are written."""

    def __init__(self, service: Service, folder: Path, processes: int, stack: ExitStack) -> None:
        self._service = service
        self._folder = folder
        self._hints = folder / "hints.json"
        script = str(FOLDER / "reader_hints.py")
        self._listener = self._start([script, service.url, str(self._hints)], stack)
        expect(self._listener, "listening")
        script = str(FOLDER / "reader_streams.py")
        self._readers = [self._start([script], stack) for _ in range(processes)]
        self.processes = [
            Process(f"readers {number}", reader.pid) for number, reader in enumerate(self._readers, 1)
        ]

    def open(self, streams: int, tokens: int, per_second: float) -> None:
        """Open so many streams and return when each has begun to be answered."""
        count = len(self._readers)
        for number, reader in enumerate(self._readers):
            mine = len(range(number, streams, count))
            file = str(self._folder / f"readers{number}.json")
            order = Order(self._service.port, MODEL, number, count, mine, tokens, per_second / count, file)
            assert reader.stdin is not None
            print(json.dumps(asdict(order)), file=reader.stdin, flush=True)
        self._expect_all("open")

    def wait(self) -> None:
        """Return when every stream has ended and was checked."""
        for word in ("first end", "ended", "written"):
            self._expect_all(word)

    def answers(self) -> list[dict[str, Any]]:
        """What was read, of each stream."""
        files = [self._folder / f"readers{number}.json" for number in range(len(self._readers))]
        return [answer for file in files for answer in json.loads(file.read_text())]

    def written(self) -> dict[str, list[float]]:
        """By job: when the server said that there is something new."""
        assert self._listener.stdin is not None
        self._listener.stdin.close()
        self._listener.wait(timeout=30)
        times: dict[str, list[float]] = json.loads(self._hints.read_text())
        return times

    def _expect_all(self, word: str) -> None:
        for reader in self._readers:
            expect(reader, word)

    @staticmethod
    def _start(arguments: list[str], stack: ExitStack) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return stack.enter_context(ended(process))


def expect(process: subprocess.Popen[str], word: str) -> None:
    """Read one word from a process; exits when it says another, as it does when it fails."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if line != word:
        raise SystemExit(f"a process of the benchmark said {line!r} instead of {word!r}: see above")


def check_open_files(streams: int) -> None:
    """Raise the limit of open files for what is started from here; exits when it cannot be raised enough."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = streams + SPARE_FILES
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise SystemExit(
            f"{streams} streams need {needed} open files in the gateway, and this shell's hard limit is "
            f"{hard}: raise it (ulimit -Hn {needed}, systemd's LimitNOFILE=, docker's --ulimit "
            f"nofile={needed}), or ask for at most --streams {max(0, hard - SPARE_FILES)}"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def during(name: str, processes: list[Process], work: Any) -> tuple[Window, Any]:
    """Do something while all streams are open; what came of it, and what the processes took meanwhile."""
    before = {process.name: process.cpu_seconds() for process in processes}
    since = time.monotonic()
    result = work()
    until = time.monotonic()
    cpu = {
        process.name: (process.cpu_seconds() - before[process.name]) / (until - since)
        for process in processes
    }
    return Window(name, since, until, cpu), result


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Everything; the figures."""
    with tempfile.TemporaryDirectory(prefix="headway-") as name, ExitStack() as stack:
        folder = Path(name)
        service = Service(folder, stack)
        blocks = 2 * options.streams // options.workers * (options.tokens // 16 + 6)
        model = f"scripted:ms_per_step={options.step_ms},blocks={blocks}"
        sequences = -(-options.streams // options.workers) + 8
        service.add_workers(options.workers, model, served_name=MODEL, sequences=sequences)
        say("server, gateway and workers are there")
        readers = Readers(service, folder, options.readers, stack)
        readers.open(min(WARM_STREAMS, options.streams), 4, options.per_second)
        readers.wait()
        time.sleep(1.0)
        empty = service.gateway.rss_bytes()
        began = time.monotonic()
        readers.open(options.streams, options.tokens, options.per_second)
        opened_seconds = time.monotonic() - began
        say(f"{options.streams} streams are open after {opened_seconds:.1f} s")
        processes = [*service.processes, *readers.processes]
        calm, _ = during("streams alone", processes, lambda: time.sleep(options.seconds))
        full = service.gateway.rss_bytes()
        watched, seen = during(
            "with console and scrapes",
            processes,
            lambda: asyncio.run(watch(service.port, options.seconds)),
        )
        say("the two windows are over; the streams go on to their ends")
        readers.wait()
        answers = readers.answers()
        found = latencies(answers, readers.written())
        return {
            **figures(options, answers, found, (calm, watched), seen),
            **memory(empty, full, options.streams),
            "opened_seconds": round(opened_seconds, 1),
            "stalled": asdict(stalled(service, options)),
        }


def say(what: str) -> None:
    """Tell who waits how far it is."""
    print(what, file=sys.stderr, flush=True)


def stalled(service: Service, options: argparse.Namespace) -> Held:
    """The readers that stop, of a worker of their own."""
    blocks = options.stalled * (options.stalled_tokens // 16 + 12) * 2
    model = f"scripted:ms_per_step=2,blocks={blocks}"
    service.add_workers(1, model, served_name=STALLED_MODEL, sequences=options.stalled)
    return stall(service, STALLED_MODEL, options.stalled, options.stalled_tokens)


def main() -> int:
    """Measure, print, and compare with the limits."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=40, help="of the shortest answer")
    parser.add_argument("--step-ms", type=float, default=1000.0, help="between the tokens of a stream")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--readers", type=int, default=2, help="processes that read")
    parser.add_argument("--per-second", type=float, default=250.0, help="streams opened a second")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each of the two windows")
    parser.add_argument("--stalled", type=int, default=16, help="readers that stop reading, afterwards")
    parser.add_argument("--stalled-tokens", type=int, default=1500, help="of their answers")
    parser.add_argument("--limit-ms", type=float, help="of the added latency's P99 with all streams alone")
    parser.add_argument("--limit-kib", type=float, help="of the gateway's memory per stream")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # what was started is ended first
    check_open_files(options.streams)
    report = run(options)
    print(json.dumps(report, indent=2)) if options.json else show(report)
    return 0 if is_good(report, options) else 1


def is_good(report: dict[str, Any], options: argparse.Namespace) -> bool:
    """Whether every stream is whole and the limits that were asked for hold."""
    is_whole = report["whole"] == report["streams"] == options.streams
    is_whole = is_whole and not report["problems"] and not report["stalled"]["problems"]
    late = next(iter(report["windows"].values()))["added_ms"]["P99"]
    is_in_time = options.limit_ms is None or late <= options.limit_ms
    return (
        is_whole
        and is_in_time
        and (options.limit_kib is None or report["kib_per_stream"] <= options.limit_kib)
    )


if __name__ == "__main__":
    os.chdir(FOLDER.parent.parent)
    sys.exit(main())
