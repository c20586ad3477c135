"""One arm under way: started, asked, measured when idle, and stopped with all that it started."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import psutil
import uvloop
from peer_arms import Arm, Launch, launch
from peer_client import WrongAnswerError, ask, run_cell
from peer_figures import Timed
from peer_setup import SetupError
from peer_work import Work, first_of

IDLE_SECONDS: Final = 3.0
STOP_SECONDS: Final = 60.0


class Running:
    """One arm under way, as a server or as a process that takes orders."""

    def __init__(self, process: subprocess.Popen[str], started: Launch, port: int, log: Path) -> None:
        self._process = process
        self._launch = started
        self._port = port
        self._log = log

    def wait_ready(self, first: Work, start_seconds: float) -> None:
        """Return after the first answer. Raises SetupError with the log's last lines."""
        if not self._launch.is_server:
            self._line()
            return
        give_up = time.monotonic() + start_seconds
        reason: object = "no answer"
        short = first_of(first)
        while self._process.poll() is None and time.monotonic() < give_up:
            try:
                asyncio.run(asyncio.wait_for(ask(self._port, self._launch.model, short), start_seconds))
            except TimeoutError:
                reason = f"no answer within {start_seconds:g} s"
            except (OSError, WrongAnswerError, asyncio.IncompleteReadError) as error:
                reason = error
                time.sleep(0.5)
            else:
                return
        raise SetupError(f"it does not start ({reason}): {self._last_words()}")

    def run(self, work: Sequence[Work], concurrency: int) -> list[Timed]:
        """Answer all of it."""
        if self._launch.is_server:
            return uvloop.run(run_cell(self._port, self._launch.model, work, concurrency))
        assert self._process.stdin is not None
        order = {"work": [asdict(one) for one in work], "concurrency": concurrency}
        print(json.dumps(order), file=self._process.stdin, flush=True)
        answers = [Timed(a["asked"], tuple(a["events"]), a["tokens"]) for a in self._line()["answers"]]
        if [answer.tokens for answer in answers] != [one.answer_tokens for one in work]:
            raise WrongAnswerError("answers of another length than was asked for")
        return answers

    def idle_cores(self) -> float:
        """How many cores it keeps busy with nothing to do, half a second after its work."""
        time.sleep(0.5)
        before = self._cpu_seconds()
        time.sleep(IDLE_SECONDS)
        return (self._cpu_seconds() - before) / IDLE_SECONDS

    def _cpu_seconds(self) -> float:
        spent = 0.0
        try:
            own = psutil.Process(self._process.pid)
            processes = [own, *own.children(recursive=True)]
        except psutil.NoSuchProcess:
            raise SetupError(f"it ended: {self._last_words()}") from None
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                spent += times.user + times.system
        return spent

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SetupError(f"it ended: {self._last_words()}")
        read: dict[str, Any] = json.loads(line)
        return read

    def _last_words(self) -> str:
        return " | ".join(self._log.read_text(errors="replace").strip().splitlines()[-3:])


@contextlib.contextmanager
def running(arm: Arm, home: Path, weights: Path) -> Iterator[Running]:
    """The arm started, and gone afterwards with all its processes."""
    log = home / f"{arm.name}.run.log"
    with tempfile.TemporaryDirectory(prefix="headway-") as folder, log.open("w") as written:
        port = free_port()
        started = launch(arm, home, weights, port, Path(folder))
        process = subprocess.Popen(
            started.command,
            stdin=subprocess.PIPE,
            stdout=written if started.is_server else subprocess.PIPE,
            stderr=written,
            text=True,
            env={**os.environ, **started.environment},
            start_new_session=True,
        )
        try:
            yield Running(process, started, port, log)
        finally:
            stop(process)


def stop(process: subprocess.Popen[str]) -> None:
    """Ask it to end, and make sure that nothing of it is left."""
    for what, seconds in ((signal.SIGTERM, STOP_SECONDS), (signal.SIGKILL, 5.0)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, what) if what == signal.SIGTERM else os.killpg(process.pid, what)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
