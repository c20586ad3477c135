"""Shows a worker's steps while somebody watches, and costs next to nothing while nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from headway.queueing.errors import QueueingError, QueueUnavailableError
from headway.queueing.step_views import StepViews
from headway.services.logs import get_logger
from headway.services.step_view import StepViewer

_log = get_logger("worker")

LOOK_SECONDS: Final = 1.0
"""Whether anybody watches: one GET."""
SHOW_SECONDS: Final = 0.4
"""Between two views: an eye calls that live, and a write of a few kB is lost beside the tokens'."""


async def show_loop(views: StepViews, worker_id: str, viewer: StepViewer, blocks: Callable[[], int]) -> None:
    """Show the steps, for ever. Nothing that goes wrong here may touch the jobs."""
    is_shown = False
    while True:
        try:
            if await views.is_watched():
                text = viewer.view(blocks())
                if text is not None:
                    await views.show(worker_id, text)
                is_shown = True
            elif is_shown:
                viewer.forget()
                is_shown = False
        except QueueUnavailableError:
            is_shown = False  # the loops that serve jobs say so
        except QueueingError as error:
            _log.warning("steps_not_shown", error=str(error))
            return
        await asyncio.sleep(SHOW_SECONDS if is_shown else LOOK_SECONDS)
