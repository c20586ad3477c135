"""The queue in Redis or Valkey: what a fleet of gateways, clients and workers shares."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import cast

from headway.queueing.batch_store import BatchStore
from headway.queueing.codec import decode_card
from headway.queueing.ids import is_model_name, lane_of
from headway.queueing.keys import MODELS, WORKERS, LaneKeys, card_key
from headway.queueing.lost_jobs import LostJobs
from headway.queueing.protocol import Reaped
from headway.queueing.redis_consumers import ConsumerSide
from headway.queueing.redis_listing import ListingSide
from headway.queueing.redis_producers import ProducerSide
from headway.queueing.redis_quotas import RedisQuotas
from headway.queueing.redis_side import reaped
from headway.queueing.redis_step_views import RedisStepViews
from headway.queueing.redis_tenants import RedisTenants
from headway.queueing.server_check import prepare
from headway.queueing.settings import DEFAULTS, QueueSettings
from headway.queueing.step_views import StepViews
from headway.queueing.tenant_store import QuotaStore, TenantStore
from headway.queueing.webhook_store import WebhookStore
from headway.queueing.worker_card import WorkerCard


class RedisQueue(ProducerSide, ConsumerSide, ListingSide):
    """Keeps every promise of ``Queue`` over Redis >= 7.0 or Valkey >= 7.2.

    ``url``: see ``address.py``; raises InvalidUrlError for any other. Nothing is connected before the first
    call. One object serves one event loop. ``clock`` and ``rng`` only name jobs, tokens and seeds.
    """

    def __init__(
        self,
        url: str,
        settings: QueueSettings = DEFAULTS,
        *,
        clock: Callable[[], float] = time.time,
        rng: Random | None = None,
    ) -> None:
        super().__init__(url, settings, clock=clock, rng=rng)
        self.tenant_store: TenantStore = RedisTenants(self._server, self._clock)
        self.quota_store: QuotaStore = RedisQuotas(self._server, settings)
        self.step_views: StepViews = RedisStepViews(self._server)
        self.batch_store = BatchStore(self._server)
        self.webhook_store = WebhookStore(self._server)
        self._search = LostJobs(self._server, settings)
        self._unanswered = {}
        self._ears = {}

    async def workers(self) -> tuple[WorkerCard, ...]:
        """See ``Queue.workers``."""
        names = cast("list[bytes]", await self._server.call("ZRANGE", WORKERS, 0, -1))
        keys = [card_key(name.decode(errors="replace")) for name in sorted(names)]
        replies = iter(
            await self._server.pipeline([(command, key) for key in keys for command in ("GET", "PTTL")])
        )
        cards = (
            decode_card(text, left_ms)
            for text, left_ms in zip(replies, replies, strict=True)
            if isinstance(text, bytes) and isinstance(left_ms, int)
        )
        return tuple(card for card in cards if card is not None)

    async def models(self) -> tuple[str, ...]:
        """See ``Queue.models``."""
        names = cast("list[bytes]", await self._server.call("SMEMBERS", MODELS))
        return tuple(sorted(filter(is_model_name, (name.decode(errors="replace") for name in names))))

    async def reap(self, model: str) -> Reaped:
        """See ``Queue.reap``."""
        lane = lane_of(model)
        requeued, dead, ticket = await self._reap_reply(lane, "search")
        if ticket:
            await self._search.restore(LaneKeys(lane), ticket)
        return reaped(lane, requeued, dead)

    async def expire_worker(self, model: str, worker_id: str) -> int:
        """See ``Queue.expire_worker``."""
        tag = LaneKeys(lane_of(model)).tag
        reply = await self._server.fcall(
            "headway_expire_worker", tag, worker_id, self._settings.max_attempts, *self._keeps
        )
        return cast("int", reply)

    async def check_writes(self, model: str) -> None:
        """See ``Queue.check_writes``."""
        await self._server.fcall("headway_probe", LaneKeys(lane_of(model)).tag)

    async def check_server(self) -> tuple[str, ...]:
        """See ``Queue.check_server``."""
        return await prepare(self._server)

    async def close(self) -> None:
        """See ``Queue.close``."""
        self._server.seal()
        for ear in self._ears.values():
            await ear.close()
        await self._reader.close()
        await self._server.close()
