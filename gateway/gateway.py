"""What every part of the gateway needs: the queue, the settings, the clocks and the books."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headway.gateway.admins import Admins
from headway.gateway.callers import Callers
from headway.gateway.constraint_checks import ConstraintChecks
from headway.gateway.errands import Errands
from headway.gateway.metrics import Metrics
from headway.gateway.model_directory import ModelDirectory
from headway.gateway.settings import GatewaySettings
from headway.gateway.stopping import Stopping
from headway.gateway.tracing import RequestTraces
from headway.gateway.unanswered import Unanswered
from headway.queueing.protocol import Queue


@dataclass(frozen=True, slots=True)
class Gateway:
    """One gateway process. ``services/`` reaches it as ``app.state.gateway``, to drain and to end it."""

    queue: Queue
    unanswered: Unanswered
    """Through which jobs are posted: it asks the tenants' limits, and takes back what got no answer."""
    callers: Callers
    admins: Admins
    settings: GatewaySettings
    metrics: Metrics
    models: ModelDirectory
    clock: Callable[[], float]
    """Monotonic seconds, for durations."""
    wall_clock: Callable[[], float]
    """Seconds since the epoch, for ``created``."""
    errands: Errands
    constraints: ConstraintChecks
    has_files: bool = False
    """Whether it has a place for files, and so takes batches."""
    stopping: Stopping = field(default_factory=Stopping)
    traces: RequestTraces | None = None
    """Who is told of each request's span; None: nobody traces."""

    async def close(self) -> None:
        """End the open streams and see the last cancels through; the queue's connections are the caller's."""
        self.stopping.end()
        await self.errands.finish(self.settings.cancel_seconds)
        self.constraints.close()
