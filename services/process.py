"""One child process: tied to our life, in its own session, its output in a log file.

Children never get the terminal's Ctrl-C: only the signals that we send. They die with us, even when we are
killed with SIGKILL (see ``tether.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headway.services.errors import StartError

TETHER = Path(__file__).resolve().with_name("tether.py")


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """Names one process for good: ids are reused, an id with its start time is not."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessMark | None:
        """The mark of a living process; None when there is none (a zombie counts as dead)."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        # The command's name may hold spaces and brackets; fields are counted after its last bracket.
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]))

    @property
    def lives(self) -> bool:
        """Whether exactly this process still runs."""
        return ProcessMark.of(self.pid) == self


class ChildProcess:
    """A process that we started; await ``wait()`` for its exit code (negative: minus the signal)."""

    def __init__(self, name: str, popen: subprocess.Popen[bytes], log_path: Path, log_offset: int) -> None:
        """``log_offset``: where this process's own output starts in the log."""
        self.name = name
        self.log_path = log_path
        self.log_offset = log_offset
        self._popen = popen
        self._exit = asyncio.get_running_loop().create_future()
        self._pidfd = os.pidfd_open(popen.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)
        mark = ProcessMark.of(popen.pid)
        # Dead already: a mark that matches no living process.
        self.mark = ProcessMark(popen.pid, -1) if mark is None else mark

    @classmethod
    def spawn(
        cls,
        name: str,
        command: Sequence[str],
        *,
        log_path: Path,
        pass_fds: Sequence[int] = (),
        death_signal: signal.Signals = signal.SIGKILL,
        extra_env: Mapping[str, str] | None = None,
    ) -> ChildProcess:
        """Start a command that gets ``death_signal`` when we die; its output is appended to the log.

        Raises StartError when the system refuses: no memory, process, descriptor, or no log to write to.
        """
        arguments = [str(int(death_signal)), "exec", *command]
        return cls._start(name, arguments, log_path, pass_fds, extra_env or {})

    @classmethod
    def adopt(
        cls, name: str, mark: ProcessMark, *, log_path: Path, death_signal: signal.Signals = signal.SIGTERM
    ) -> ChildProcess:
        """Put a process that is not our child on a leash: our SIGTERM and our death reach it too.

        Raises StartError as ``spawn`` does.
        """
        leashed = [str(int(death_signal)), "leash", str(mark.pid), str(mark.start_ticks)]
        child = cls._start(name, leashed, log_path, (), {})
        child.mark = mark
        return child

    @classmethod
    def _start(
        cls,
        name: str,
        arguments: Sequence[str],
        log_path: Path,
        pass_fds: Sequence[int],
        extra_env: Mapping[str, str],
    ) -> ChildProcess:
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("spawn from the main thread: the death signal follows the thread that forked")
        tether = [sys.executable, "-I", "-S", str(TETHER), str(os.getpid())]
        popen = None
        try:
            with open(log_path, "ab") as log:
                log_offset = log.tell()
                popen = subprocess.Popen(
                    [*tether, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env={**os.environ, **extra_env},
                    pass_fds=tuple(pass_fds),
                    start_new_session=True,
                )
            return cls(name, popen, log_path, log_offset)
        except OSError as error:
            if popen is not None:  # it runs, and nobody would notice its end
                popen.kill()
                popen.wait()
            raise start_refused(name, error) from None

    def _reap(self) -> None:
        code = self._popen.poll()
        if code is None:
            return
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        if not self._exit.done():
            self._exit.set_result(code)

    @property
    def pid(self) -> int:
        """The process's id; that of the adopted process, not of its leash."""
        return self.mark.pid

    @property
    def has_ended(self) -> bool:
        """Whether it has exited."""
        return self._exit.done()

    async def wait(self) -> int:
        """Its exit code, once it has ended."""
        return int(await asyncio.shield(self._exit))

    def terminate(self) -> None:
        """Ask it to stop."""
        self._popen.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it and whatever it started, now."""
        if self.has_ended:
            return
        if self.mark.pid != self._popen.pid and self.mark.lives:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.mark.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)

    async def stop(self, timeout_seconds: float) -> bool:
        """Ask it to stop, and kill it after the timeout; whether it went by itself."""
        self.terminate()
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.wait()
        except TimeoutError:
            self.kill()
            await self.wait()
            return False
        return True


_START_HINTS = {
    errno.EMFILE: "raise the limit of open files: ulimit -n",
    errno.ENFILE: "this machine has no open files left: raise fs.file-max, or end something",
    errno.EAGAIN: "raise the limit of processes: ulimit -u, or the container's pids limit",
    errno.ENOMEM: "free some memory",
    errno.ENOSPC: "free some space on the disk of the state dir",
}


def start_refused(name: str, error: OSError) -> StartError:
    """What to say when the system refuses what a start needs, and what to do about it."""
    place = f" ({error.filename})" if error.filename else ""
    hint = _START_HINTS.get(error.errno or 0)
    return StartError(f"{name} cannot be started: {error.strerror}{place}", hint=hint)


def describe_exit(code: int) -> str:
    """An exit code in words: ``exit code 1`` or ``killed by SIGKILL``."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
