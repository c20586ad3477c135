"""How many requests of each tenant this process serves at once, and the bound on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from headway.gateway.errors import too_many_requests

REASON: Final = "too_many_connections"
RETRY_AFTER_SECONDS: Final = 1


class OpenRequests:
    """Counts them; ``limit`` None: any number. The count is one process's: N gateways allow N times it."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._open: Counter[str] = Counter()

    def of(self, tenant: str) -> int:
        """How many are open now."""
        return self._open[tenant]

    def enter(self, tenant: str) -> Callable[[], None]:
        """Count one more until the callable that is returned is called; raises ApiError 429."""
        if self._limit is not None and self._open[tenant] >= self._limit:
            raise too_many_requests(
                f"tenant {tenant} has {self._limit} requests open here, which is the most it may have; wait "
                "for one to end, or post jobs (POST /v1/jobs) and fetch their answers later; an operator "
                "raises the limit with `headway gateway --max-connections-per-tenant N`",
                reason=REASON,
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        self._open[tenant] += 1
        return lambda: self._leave(tenant)

    def _leave(self, tenant: str) -> None:
        self._open[tenant] -= 1
        if not self._open[tenant]:
            del self._open[tenant]  # names come and go in open mode
