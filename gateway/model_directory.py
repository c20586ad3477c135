"""Which models are served: the live workers and every model known so far, read again when they get old."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headway.gateway.errors import ApiError, unavailable
from headway.queueing.answer_formats import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    ReasoningFormat,
    ToolFormat,
)
from headway.queueing.protocol import Queue
from headway.queueing.worker_card import WorkerCard


@dataclass(frozen=True, slots=True)
class Formats:
    """How a model writes what is not plain words; by default as its text shows."""

    tools: ToolFormat = "auto"
    reasoning: ReasoningFormat = "auto"


UNKNOWN: Final = Formats()


@dataclass(frozen=True, slots=True)
class Fleet:
    """The workers that live now, and every model that was ever served here."""

    workers: tuple[WorkerCard, ...]
    models: tuple[str, ...]

    @property
    def served(self) -> tuple[str, ...]:
        """All model names, sorted."""
        return tuple(sorted({*self.models, *(card.model for card in self.workers)}))


def model_not_found(model: str, fleet: Fleet) -> ApiError:
    """A 404 that lists what is served."""
    served = ", ".join(fleet.served) or "none yet"
    message = f"the model {model[:128]!r} does not exist here; served: {served}"
    return ApiError(404, message, code="model_not_found", param="model")


class ModelDirectory:
    """A short-lived copy of the registry, so that a request costs no extra round trip."""

    def __init__(self, queue: Queue, *, ttl_seconds: float, clock: Callable[[], float]) -> None:
        self._queue = queue
        self._ttl_seconds = ttl_seconds
        self._clock = clock
        self._fleet = Fleet((), ())
        self._read_at: float | None = None
        self._formats: dict[str, Formats] = {}

    async def fleet(self, *, fresh: bool = False) -> Fleet:
        """The registry, at most ``ttl_seconds`` old; raises QueueUnavailableError."""
        now = self._clock()
        if fresh or self._read_at is None or now - self._read_at > self._ttl_seconds:
            self._fleet = Fleet(await self._queue.workers(), await self._queue.models())
            self._read_at = now
            self._formats |= {card.model: _formats(card) for card in self._fleet.workers if card.tool_format}
        return self._fleet

    def formats(self, model: str) -> Formats:
        """As its workers said last, also when all of them are away now."""
        return self._formats.get(model, UNKNOWN)

    async def require(self, model: str) -> None:
        """Raise ApiError 404 for a model that nobody ever served, 503 before the first worker is there.

        A model whose workers are all away is accepted: the queue is durable, the job waits for the next one.
        """
        if model in (await self.fleet()).served:
            return
        served = (await self.fleet(fresh=True)).served
        if model in served:
            return
        if not served:
            raise unavailable(
                "no worker has registered yet: start one with `headway worker`, or wait until it has loaded",
                reason="no_worker",
                retry_after_seconds=1,
            )
        raise model_not_found(model, self._fleet)


def _formats(card: WorkerCard) -> Formats:
    """A newer worker's word that we do not know counts as none."""
    tools = card.tool_format if card.tool_format in TOOL_FORMATS else "auto"
    reasoning = card.reasoning_format if card.reasoning_format in REASONING_FORMATS else "auto"
    return Formats(tools, reasoning)
