"""Two-stage stop: the first signal asks for an orderly end, the second for one now."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Ctrl-C, a process manager, a closed terminal window."""


class StopSignals:
    """What the outside asked for so far; wait on ``first`` and ``second``."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.last: signal.Signals | None = None

    @contextmanager
    def caught(self) -> Generator[None]:
        """Catch the signals that ask for an end."""
        loop = asyncio.get_running_loop()
        # nohup asks us to outlive the terminal: what it had ignored stays ignored.
        is_detached = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        wanted = [number for number in STOPPING if not (is_detached and number is signal.SIGHUP)]
        for number in wanted:
            loop.add_signal_handler(number, self._receive, number)
        try:
            yield
        finally:
            for number in wanted:
                loop.remove_signal_handler(number)

    def _receive(self, number: signal.Signals) -> None:
        self.last = number
        (self.second if self.first.is_set() else self.first).set()


def die_of(number: signal.Signals) -> None:
    """End this process by the signal itself, so that its parent sees the truth."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
