"""How far the engine may run ahead of the queue: a bound on unacknowledged tokens per job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(slots=True)
class _Flow:
    requests: set[str]
    unacknowledged: int = 0
    is_held: bool = False


class FlowControl:
    """Counts, per job, tokens that came out of the engine and are not yet known to be in the queue.

    Owned by the engine's thread. Over the limit a job's requests are held; at half of it they go on, so that
    a job at the edge does not flap. The count never exceeds the limit by more than one step's tokens.
    """

    def __init__(self, limit_tokens: int) -> None:
        self._limit = limit_tokens
        self._flows: dict[str, _Flow] = {}
        self._job_of: dict[str, str] = {}

    def open(self, job: str, requests: Iterable[str]) -> None:
        """Follow a job's requests."""
        flow = self._flows.setdefault(job, _Flow(set()))
        for request in requests:
            flow.requests.add(request)
            self._job_of[request] = job

    def close(self, request: str) -> None:
        """Forget a request that ended; its job is forgotten with its last one."""
        job = self._job_of.pop(request, None)
        if job is None:
            return
        flow = self._flows[job]
        flow.requests.discard(request)
        if not flow.requests:
            del self._flows[job]

    def holds(self, request: str) -> bool:
        """Whether it must not go on before more of its job's tokens are written."""
        flow = self._flows.get(self._job_of.get(request, ""))
        return flow is not None and flow.is_held

    def emitted(self, request: str, tokens: int) -> tuple[str, ...]:
        """Count what came out; returns the requests to hold now."""
        flow = self._flows.get(self._job_of.get(request, ""))
        if flow is None:
            return ()
        flow.unacknowledged += tokens
        if flow.is_held or flow.unacknowledged < self._limit:
            return ()
        flow.is_held = True
        return tuple(sorted(flow.requests))

    def acknowledged(self, job: str, tokens: int) -> tuple[str, ...]:
        """Count what was written; returns the requests that may go on now."""
        flow = self._flows.get(job)
        if flow is None:
            return ()
        flow.unacknowledged = max(0, flow.unacknowledged - tokens)
        if not flow.is_held or flow.unacknowledged > self._limit // 2:
            return ()
        flow.is_held = False
        return tuple(sorted(flow.requests))
