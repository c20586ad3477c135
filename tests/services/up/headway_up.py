"""A real ``headway up`` in its own process, for tests: starts it, asks it, ends it, counts what it leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from headway.services.process import ProcessMark
from headway.services.state import StateDir, UpState
from headway.services.status import Status, status_of

HEADWAY = [sys.executable, "-P", "-m", "headway.services.cli"]
START_SECONDS = 40.0
"""Generous: two cores may be busy with other tests."""


def clean_environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment without anybody's HEADWAY_ variables, with a home of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
    kept["HEADWAY_BATCH"] = "false"  # a second of CPU at each start, in tests that are not about it
    kept.pop("XDG_STATE_HOME", None)
    return {**kept, "HOME": str(home), **(extra or {})}


def headway(
    *arguments: str, home: Path, env: Mapping[str, str] | None = None, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    """One ``headway`` command, run to its end."""
    return subprocess.run(
        [*HEADWAY, *arguments],
        env=clean_environment(home, env),
        cwd=home,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def eventually(what: str, is_true: Callable[[], bool], seconds: float = START_SECONDS) -> None:
    """Wait until something holds; fail, naming it, when it does not in time."""
    deadline = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


@dataclass
class HeadwayUp:
    """One ``headway up``; ``marks`` are its own and its children's, for counting what is left."""

    home: Path
    state_dir: Path
    process: subprocess.Popen[bytes]
    output_path: Path
    marks: set[ProcessMark] = field(default_factory=set[ProcessMark])

    @classmethod
    def start(
        cls, home: Path, *arguments: str, state_dir: Path | None = None, env: Mapping[str, str] | None = None
    ) -> Self:
        """Start it without waiting; the toy model unless the arguments name another one."""
        folder = state_dir or home / "state"
        model = [] if "--model" in arguments else ["--model", "scripted"]
        port = [] if "--port" in arguments else ["--port", "0"]
        output = home / "up.out"
        with output.open("ab") as out:
            process = subprocess.Popen(
                [*HEADWAY, "up", "--state-dir", str(folder), *model, *port, *arguments],
                env=clean_environment(home, env),
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        return cls(home, folder, process, output)

    @property
    def output(self) -> str:
        """All that it has printed."""
        return self.output_path.read_text(encoding="utf-8")

    @property
    def state(self) -> UpState:
        """What its state file says."""
        state = StateDir(self.state_dir).read()
        assert state is not None, self.output
        self._remember(state)
        return state

    @property
    def status(self) -> Status:
        """What ``headway status`` would say, without the cost of a process."""
        return status_of(self.state)

    @property
    def url(self) -> str:
        """The gateway's URL."""
        return self.state.gateway.url

    @property
    def redis_url(self) -> str:
        """The queue's URL."""
        return self.state.redis.url

    @property
    def worker_pid(self) -> int:
        """The one worker's process."""
        pid = self.status.workers[0].pid
        assert pid is not None
        return pid

    def _remember(self, state: UpState) -> None:
        parts = [state.redis.mark, state.gateway.mark, *(worker.mark for worker in state.workers)]
        self.marks |= {state.up, *(mark for mark in parts if mark is not None)}

    def is_ready(self) -> bool:
        """Whether its status is ready; fails when it has ended instead."""
        assert self.process.poll() is None, f"headway up ended:\n{self.output}"
        state = StateDir(self.state_dir).read()
        if state is None or state.up.pid != self.process.pid:
            return False
        self._remember(state)
        return status_of(state).ready

    def wait_ready(self) -> Self:
        """Return once it is ready."""
        try:
            eventually("headway up is ready", self.is_ready)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output}\n{self.logs()}") from None
        return self

    def logs(self) -> str:
        """The last lines of all logs, for messages."""
        parts = [
            f"--- {path.name}\n{path.read_text()[-2000:]}" for path in (self.state_dir / "logs").glob("*")
        ]
        return "\n".join(parts)

    def left(self) -> list[int]:
        """Processes ever seen here that still run."""
        return [mark.pid for mark in self.marks if mark.lives]

    def interrupt(self) -> None:
        """Ctrl-C, as a terminal sends it: to the whole foreground process group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        """SIGKILL to ``headway up`` alone."""
        self.process.kill()
        self.process.wait()

    def run(self, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Another ``headway`` command against this state dir."""
        return headway(*arguments, "--state-dir", str(self.state_dir), home=self.home, **more)

    def submit(self, prompt: str, *options: str) -> str:
        """Post a job from the command line."""
        done = self.run("submit", prompt, *options)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def status_json(self) -> tuple[int, dict[str, Any]]:
        """The exit code and output of ``headway status --json``."""
        done = self.run("status", "--json")
        fields: dict[str, Any] = json.loads(done.stdout)
        return done.returncode, fields

    def stop(self) -> int:
        """Stop it in order; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=START_SECONDS)

    def clean_up(self) -> None:
        """End it whatever happened, and everything that it is known to have started."""
        state = StateDir(self.state_dir).read()
        if state is not None:
            self._remember(state)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            time.sleep(0.05)
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.kill()
        for mark in self.marks:
            if mark.lives:
                os.kill(mark.pid, signal.SIGKILL)


@contextmanager
def running_up(
    home: Path, *arguments: str, state_dir: Path | None = None, env: Mapping[str, str] | None = None
) -> Generator[HeadwayUp]:
    """A ``headway up`` that is ready; cleaned up at the end."""
    up = HeadwayUp.start(home, *arguments, state_dir=state_dir, env=env)
    try:
        yield up.wait_ready()
    finally:
        up.clean_up()
