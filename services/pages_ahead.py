"""Memory of the KV pool made ready beside the engine, so that no user's step waits for first touches."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from headway.engine.pool_pages import PoolPages  # needs torch

LEAD_BYTES: Final = 256 << 20
"""Ready beyond what is in use: seconds of prompts at full speed, and no more than an idle worker may hold."""
SPARE_BYTES: Final = 512 << 20
"""Left to everybody else on the machine, or in the container: then pages come as they are written."""
LOOK_SECONDS: Final = 1.0
"""Also what is left to the start: the gateway and the batch service want the cores first."""
_LOWEST_PRIORITY: Final = 19


class PagesAhead:
    """A thread of the lowest priority. ``used_blocks``, ``available_bytes``: as of now; asked from it."""

    def __init__(
        self,
        pages: PoolPages,
        used_blocks: Callable[[], int],
        available_bytes: Callable[[], int],
        *,
        lead_bytes: int = LEAD_BYTES,
    ) -> None:
        self._pages = pages
        self._lead_blocks = lead_bytes // pages.block_bytes
        self._used_blocks = used_blocks
        self._available_bytes = available_bytes
        self._stopping = threading.Event()
        # A daemon: one call lasts milliseconds, and nothing is lost when the process ends in it.
        self._thread = threading.Thread(target=self._run, name="pages-ahead", daemon=True)

    def start(self) -> None:
        """Begin, ``LOOK_SECONDS`` from now."""
        self._thread.start()

    def stop(self) -> None:
        """End it, soon."""
        self._stopping.set()

    def look(self) -> bool:
        """Provide what is to be ready now; False: there is nothing left to do."""
        pages = self._pages
        while pages.provided_blocks < min(pages.block_count, self._used_blocks() + self._lead_blocks):
            if self._stopping.is_set() or self._available_bytes() < SPARE_BYTES:
                break
            if not pages.provide():
                return False
        return pages.provided_blocks < pages.block_count

    def _run(self) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        while not self._stopping.wait(LOOK_SECONDS) and self.look():
            pass
