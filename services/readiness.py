"""How a child process says that it serves: one byte through a pipe, whose writing end it inherits.

Processes that register in the queue or answer HTTP need none of it; the batch service does neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Generator


def tell_ready(descriptor: int) -> None:
    """Say it, once; nobody may be left to hear it."""
    with contextlib.suppress(OSError):
        os.write(descriptor, b"\n")
    with contextlib.suppress(OSError):
        os.close(descriptor)


@contextlib.contextmanager
def ready_pipe(hear: Callable[[], None]) -> Generator[int, None, None]:
    """The end for a child that is started meanwhile; ``hear`` is called if the child says that it serves."""
    reading, writing = os.pipe()

    def heard() -> None:
        loop.remove_reader(reading)
        said = os.read(reading, 1)  # nothing: the child has ended, or closed it without a word
        os.close(reading)
        if said:
            hear()

    loop = asyncio.get_running_loop()
    loop.add_reader(reading, heard)
    try:
        yield writing
    finally:
        os.close(writing)
