"""A screen that is drawn again and again, and left by ``q`` or Ctrl-C; the terminal is put back as it was."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

_ENTER: Final = "\033[?1049h\033[?25l"
"""The alternate screen, without a cursor: what stood in the terminal is there again afterwards."""
_LEAVE: Final = "\033[?25h\033[?1049l"
_HOME: Final = "\033[H"
_END_OF_LINE: Final = "\033[K"
_BELOW: Final = "\033[J"
"""Clear what is right of the cursor, and what is below it."""
_CTRL_C: Final = "\x03"


class LiveScreen:
    """Inside ``live_screen``: draws, and waits for the wish to leave."""

    def __init__(self) -> None:
        self._is_left = asyncio.Event()

    def draw(self, lines: Sequence[str], height: int) -> None:
        """Show these lines in place of the last ones; the last line of the screen stays free."""
        text = f"{_END_OF_LINE}\r\n".join(lines[: height - 1])
        with suppress(OSError):
            sys.stdout.write(f"{_HOME}{text}{_END_OF_LINE}{_BELOW}")
            sys.stdout.flush()

    async def wait(self, seconds: float) -> bool:
        """Whether somebody wants to leave; says no after a while."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_left.wait()
        return self._is_left.is_set()

    def leave(self) -> None:
        """Let ``wait`` say yes."""
        self._is_left.set()

    def read_keys(self, source: int) -> None:
        """Look at what was typed."""
        typed = os.read(source, 64).decode(errors="replace")
        if not typed or {"q", "Q", _CTRL_C} & set(typed):
            self.leave()


@contextmanager
def live_screen() -> Generator[LiveScreen]:
    """Take the terminal over, inside a running event loop."""
    loop, screen, source = asyncio.get_running_loop(), LiveScreen(), sys.stdin.fileno()
    is_terminal = sys.stdin.isatty()
    before = termios.tcgetattr(source) if is_terminal else None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, screen.leave)
    try:
        if is_terminal:
            tty.setcbreak(source)
            loop.add_reader(source, screen.read_keys, source)
        sys.stdout.write(_ENTER)
        yield screen
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
        if before is not None:
            loop.remove_reader(source)
            termios.tcsetattr(source, termios.TCSADRAIN, before)
        with suppress(OSError):
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()
