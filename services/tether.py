"""Ties a process to the life of its parent: the one that starts it dies, so does this one.

Run by path, never imported by the processes that it starts (standard library only, 15 ms):

    tether.py PARENT SIGNAL exec COMMAND...       become COMMAND; SIGNAL arrives when the parent dies
    tether.py PARENT SIGNAL leash PID TICKS       stay beside a process that is not the parent's child, end
                                                  when it ends, and send it SIGNAL when the parent dies

Linux delivers PR_SET_PDEATHSIG when the *thread* that forked ends, so parents spawn from their main thread
only. ``{pid}`` in the command's arguments becomes this process's id, which survives exec.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
RECHECK_SECONDS = 0.5


def ask_for_death_signal(number: int, parent: int) -> bool:
    """Whether the parent lives and the kernel will send us ``number`` when it dies."""
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_PDEATHSIG): {os.strerror(error)}")
    # The parent may have died between fork and prctl: then nothing will ever be sent.
    return os.getppid() == parent


def become(command: list[str]) -> None:
    """Replace this process by the command."""
    pid = str(os.getpid())
    argv = [part.replace("{pid}", pid) for part in command]
    # Python ignores SIGPIPE, and what is ignored stays ignored across exec.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    os.execvp(argv[0], argv)


def start_ticks(pid: int) -> str:
    """When a process started, in clock ticks since boot; empty when there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def leash(pid: int, ticks: str, number: int, parent: int) -> None:
    """Wait for the end of a process; when the parent dies or we are told to stop, signal it first."""
    handle = os.pidfd_open(pid)
    if start_ticks(pid) != ticks:
        return  # the id already belongs to another process

    def pass_on(*_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)

    signal.signal(signal.SIGTERM, pass_on)
    told = not ask_for_death_signal(signal.SIGTERM, parent)
    if told:
        pass_on()
    while not select.select([handle], [], [], RECHECK_SECONDS)[0]:
        if not told and os.getppid() != parent:
            told = True
            pass_on()


def main() -> None:
    """Read the arguments described above."""
    parent, number, mode, *rest = sys.argv[1:]
    if mode == "leash":
        leash(int(rest[0]), rest[1], int(number), int(parent))
    elif ask_for_death_signal(int(number), int(parent)):
        become(rest)
    else:
        sys.exit(128 + int(number))


if __name__ == "__main__":
    main()
