"""How long ``headway up`` takes until its curl is printed, and what of it goes where.

    .venv/bin/python ops/bench/start.py [--rounds 5] [--model smollm2-135m]

First a start with an empty cache (kernels are compiled, weights packed; the cache is a fresh folder), then
second starts in turns, with the batch service and without. Seconds since the command was typed, medians; each
from the clock of the process that says it: ``up.log`` and the logs beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

CURL: Final = "Ask it something"
LIMIT_SECONDS: Final = 3.0
"""Of a second start of the demo model, all services with it."""
PHASES: Final = (
    ("settings read", "up", {"event": "up"}),
    ("server answers", "up", {"process": "redis", "state": "ready"}),
    ("gateway begins", "gateway", {"event": "starting"}),
    ("gateway listens", "gateway", {"event": "listening"}),
    ("worker begins", "worker", {"event": "worker_starting"}),
    ("worker ready", "worker", {"event": "worker_ready"}),
    ("seen ready", "up", {"process": "worker", "state": "ready"}),
)
LATER: Final = ("batch ready", "batch", {"event": "ready"})
WAIT_SECONDS: Final = 180.0


def main() -> int:
    """Measure, print, compare with the limit."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default="smollm2-135m")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headway-start-") as folder:
        home = Path(folder)
        base = ("--model", options.model, "--port", "0", "--state-dir", str(home / "state"))
        cache = {**os.environ, "XDG_CACHE_HOME": str(home / "cache")}
        print(f"first start, with an empty cache: {one_start(home, base, cache)['curl printed']:.2f} s")
        with_batch: list[dict[str, float]] = []
        without: list[dict[str, float]] = []
        for _ in range(options.rounds):
            with_batch.append(one_start(home, (*base, "--batch"), cache))
            without.append(one_start(home, (*base, "--no-batch"), cache))
    show(with_batch, without)
    return 0 if median(with_batch, "curl printed") < LIMIT_SECONDS else 1


def one_start(home: Path, arguments: tuple[str, ...], environment: dict[str, str]) -> dict[str, float]:
    """Start, wait for the curl (and for the batch service, where it runs), stop; what happened when."""
    for log in (home / "state" / "logs").glob("*.log"):
        log.unlink()
    printed, command = home / "printed", [sys.executable, "-P", "-m", "headway.services.cli", "up"]
    with printed.open("wb") as out:
        began_unix, began = time.time(), time.perf_counter()
        process = subprocess.Popen([*command, *arguments], env=environment, stdout=out, stderr=out)
    try:
        await_words(process, printed, CURL)
        times = {"curl printed": time.perf_counter() - began}
        if "--batch" in arguments:
            await_words(process, printed, "batch     ready")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    for name, log, wanted in (*PHASES, LATER):
        found = next(moments(home / "state" / "logs" / f"{log}.log", wanted), None)
        if found is not None:
            times[name] = found - began_unix
    return times


def await_words(process: subprocess.Popen[bytes], printed: Path, words: str) -> None:
    """Return once it has printed them; RuntimeError: it ended, or took too long."""
    deadline = time.monotonic() + WAIT_SECONDS
    while words not in printed.read_text(encoding="utf-8"):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"no {words!r}:\n{printed.read_text(encoding='utf-8')}")
        time.sleep(0.01)


def moments(log: Path, wanted: dict[str, str]) -> Iterator[float]:
    """Unix times of the lines that have these fields."""
    if not log.exists():
        return
    for line in log.read_text(encoding="utf-8").splitlines():
        if line.startswith("{") and wanted.items() <= (fields := json.loads(line)).items():
            yield datetime.fromisoformat(fields["timestamp"]).timestamp()


def median(starts: list[dict[str, float]], name: str) -> float:
    """Over the starts that have it."""
    return statistics.median(start[name] for start in starts if name in start)


def show(with_batch: list[dict[str, float]], without: list[dict[str, float]]) -> None:
    """One line a phase; the last has the lowest and highest start, too."""
    print(f"second starts, seconds (medians of {len(with_batch)}):")
    print(f"  {'':<16}{'with batch':>12}{'--no-batch':>12}")
    for name in (*(phase[0] for phase in PHASES), "curl printed"):
        print(f"  {name:<16}{median(with_batch, name):>12.2f}{median(without, name):>12.2f}")
    print(f"  {LATER[0]:<16}{median(with_batch, LATER[0]):>12.2f}")
    for name, starts in (("with batch", with_batch), ("--no-batch", without)):
        totals = sorted(start["curl printed"] for start in starts)
        print(f"  {name}: {totals[0]:.2f} to {totals[-1]:.2f}")


if __name__ == "__main__":
    sys.exit(main())
