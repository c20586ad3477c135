"""The way between device and host memory, where copies can run beside the computation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch


class Ticket(Protocol):
    """Copies that were given to a bus."""

    @property
    def is_done(self) -> bool:
        """Whether they have arrived; never waits."""
        ...

    @property
    def seconds(self) -> float:
        """How long they were on the way, once they have arrived."""
        ...

    def wait(self) -> None:
        """Return when they have arrived."""
        ...


class Bus(Protocol):
    """Carries copies in the order in which it gets them."""

    def carry(self, copy: Callable[[], None]) -> Ticket:
        """Let ``copy`` happen after everything that the device has been told so far, and not before."""
        ...


class CudaTicket:
    """The time between two events of one stream."""

    def __init__(self, began: torch.cuda.Event, ended: torch.cuda.Event) -> None:
        self._began = began
        self._ended = ended

    @property
    def is_done(self) -> bool:
        """Whether the second event has passed."""
        return bool(self._ended.query())  # type: ignore[no-untyped-call]  # torch leaves it untyped

    @property
    def seconds(self) -> float:
        """Between the events, as the GPU saw them."""
        return float(self._began.elapsed_time(self._ended)) / 1e3

    def wait(self) -> None:
        """Let this thread sleep until then."""
        self._ended.synchronize()


class CudaBus:
    """A stream of its own: pinned memory is copied while the next steps compute."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch leaves it untyped

    def carry(self, copy: Callable[[], None]) -> CudaTicket:
        """Run ``copy`` on the stream; what it touches has to live until the ticket is done."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            began = self._mark()
            copy()
            return CudaTicket(began, self._mark())

    def _mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        event.record(self._stream)
        return event
