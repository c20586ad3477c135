"""What preemptions were expected to cost and what they came to, for logs and metrics.

swap        out: copied to the host ──► parked ──► copied back: in        costs the time of both copies
recompute   out ──► waiting ──► computed up to where it was: in           costs its share of those steps
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from headway.engine.preemption import Mode, Preemption
from headway.engine.request import Request
from headway.engine.values import CopyTime, RequestKey


@dataclass(frozen=True, slots=True)
class Departure:
    """A request gave way, and why in this mode. Seconds are predictions."""

    key: RequestKey
    tenant: str
    priority: int
    step: int
    mode: Mode
    lost_tokens: int
    """Computed tokens thrown away."""
    moved_bytes: int
    """Copied to the host, and back again later."""
    swap_seconds: float
    """Infinite: the host had no room."""
    recompute_seconds: float
    kv_blocks_total: int
    kv_blocks_before: int
    """Used while it ran."""
    kv_blocks_after: int
    """The same without it."""


@dataclass(frozen=True, slots=True)
class Comeback:
    """A request that gave way is where it was before, and what that took."""

    key: RequestKey
    tenant: str
    priority: int
    step: int
    mode: Mode
    predicted_seconds: float
    real_seconds: float


@dataclass(slots=True)
class Detour:
    """One request's way out and back, while it lasts."""

    mode: Mode
    predicted_seconds: float
    tokens: int
    """Computed when it left: with so many again it is back."""
    step: int
    """Planned its last copy."""
    copied_blocks: int
    """Of the copy that is under way; 0: none is."""
    is_out: bool = True
    real_seconds: float = 0.0


@dataclass(slots=True)
class Spent:
    """Sums over the detours of one mode that led back."""

    predicted_seconds: float = 0.0
    real_seconds: float = 0.0


class Detours:
    """Follows each preemption to its end; ``happened`` is a ring that a reader may empty."""

    def __init__(self, *, most_happened: int = 1024) -> None:
        self.happened: deque[Departure | Comeback] = deque(maxlen=most_happened)
        self.spent = {mode: Spent() for mode in Mode}
        self._open: dict[Request, Detour] = {}

    def __contains__(self, request: object) -> bool:
        """Whether a request gave way and is not back."""
        return request in self._open

    def __len__(self) -> int:
        return len(self._open)

    def leave(
        self,
        preemption: Preemption,
        step: int,
        *,
        copied_blocks: int,
        block_bytes: float,
        kv_blocks: tuple[int, int, int],
    ) -> None:
        """A request gives way; the swap of this step copies so many blocks.

        ``kv_blocks``: in all, used before, used after.
        """
        request, mode = preemption.request, preemption.mode
        seconds = preemption.swap_seconds if mode is Mode.SWAP else preemption.recompute_seconds
        self._open[request] = Detour(mode, seconds, request.computed_tokens, step, copied_blocks)
        self.happened.append(
            Departure(
                request.key,
                request.spec.tenant,
                request.spec.priority,
                step,
                mode,
                0 if mode is Mode.SWAP else request.computed_tokens,
                int(copied_blocks * block_bytes),
                preemption.swap_seconds,
                preemption.recompute_seconds,
                *kv_blocks,
            )
        )

    def turn_back(self, request: Request, step: int, copied_blocks: int) -> None:
        """It has blocks again; the swap of this step fills so many of them."""
        detour = self._open.get(request)
        if detour is not None:
            detour.is_out, detour.step, detour.copied_blocks = False, step, copied_blocks

    def compute(self, request: Request, start: int, end: int, seconds: float) -> None:
        """A step computed ``[start, end)`` of it in ``seconds``."""
        detour = self._open.get(request)
        if detour is not None and detour.mode is Mode.RECOMPUTE:
            again = max(0, min(end, detour.tokens) - start)
            detour.real_seconds += seconds * again / (end - start)

    def land(self, step: int, copied_step: int, times: Sequence[CopyTime]) -> None:
        """A step ended; swaps up to ``copied_step`` are complete. ``times``: of those that were timed."""
        for time in times:
            for detour in self._open.values():
                if detour.copied_blocks and detour.is_out == time.is_out and detour.step <= time.step:
                    detour.real_seconds += time.seconds * detour.copied_blocks / time.blocks
                    detour.copied_blocks = 0
        for request, detour in list(self._open.items()):
            if detour.step <= copied_step:
                detour.copied_blocks = 0
            if not detour.is_out and not detour.copied_blocks and request.computed_tokens >= detour.tokens:
                self._end(request, detour, step)

    def forget(self, request: Request) -> None:
        """It ended on its way."""
        self._open.pop(request, None)

    def _end(self, request: Request, detour: Detour, step: int) -> None:
        del self._open[request]
        spent = self.spent[detour.mode]
        spent.predicted_seconds += detour.predicted_seconds
        spent.real_seconds += detour.real_seconds
        spec = request.spec
        self.happened.append(
            Comeback(
                request.key,
                spec.tenant,
                spec.priority,
                step,
                detour.mode,
                detour.predicted_seconds,
                detour.real_seconds,
            )
        )
