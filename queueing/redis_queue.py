"""The queue in Redis or Valkey: what a fleet of gateways, clients and workers shares."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import Any, cast

from headway.queueing.codec import decode_card, pairs
from headway.queueing.ids import is_model_name, lane_of
from headway.queueing.keys import MODELS, WORKERS, LaneKeys, card_key
from headway.queueing.messages import Priority
from headway.queueing.protocol import DeadLetter, LaneDepth, Reaped, WorkerCard
from headway.queueing.redis_consumers import ConsumerSide
from headway.queueing.redis_producers import ProducerSide
from headway.queueing.server_check import prepare
from headway.queueing.settings import DEFAULTS, QueueSettings


class RedisQueue(ProducerSide, ConsumerSide):
    """Keeps every promise of ``Queue`` over Redis >= 7.0 or Valkey >= 7.2.

    ``url``: ``redis://``, ``rediss://`` or ``unix:///path``. Nothing is connected before the first call. One
    object serves one event loop. ``clock`` and ``rng`` only name jobs, tokens and seeds.
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
        self._unanswered = {}
        self._seen = {}

    async def workers(self) -> tuple[WorkerCard, ...]:
        """See ``Queue.workers``."""
        names = cast("list[bytes]", await self._server.call("ZRANGE", WORKERS, 0, -1))
        if not names:
            return ()
        texts = cast(
            "list[bytes | None]",
            await self._server.call(
                "MGET", *(card_key(name.decode(errors="replace")) for name in sorted(names))
            ),
        )
        cards = (decode_card(text) for text in texts if text is not None)
        return tuple(card for card in cards if card is not None)

    async def models(self) -> tuple[str, ...]:
        """See ``Queue.models``."""
        names = cast("list[bytes]", await self._server.call("SMEMBERS", MODELS))
        return tuple(sorted(filter(is_model_name, (name.decode(errors="replace") for name in names))))

    async def reap(self, model: str) -> Reaped:
        """See ``Queue.reap``."""
        return await self._reap_lane(lane_of(model))

    async def expire_worker(self, model: str, worker_id: str) -> int:
        """See ``Queue.expire_worker``."""
        tag = LaneKeys(lane_of(model)).tag
        reply = await self._server.fcall(
            "headway_expire_worker", tag, worker_id, self._settings.max_attempts, *self._keeps
        )
        return cast("int", reply)

    async def depth(self, model: str) -> LaneDepth:
        """See ``Queue.depth``."""
        keys = LaneKeys(lane_of(model))
        replies = await self._server.pipeline(
            [
                *(("XLEN", keys.waiting(band)) for band in Priority),
                *(("LLEN", keys.returned(band)) for band in Priority),
                ("ZCARD", keys.lease),
                ("XLEN", keys.dead_letters),
            ]
        )
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        counts = cast("list[int]", replies)
        bands = len(Priority)
        return LaneDepth(
            queued={band: counts[at] + counts[bands + at] for at, band in enumerate(Priority)},
            running=counts[-2],
            dead_letters=counts[-1],
        )

    async def dead_letters(self, model: str, limit: int = 100) -> tuple[DeadLetter, ...]:
        """See ``Queue.dead_letters``."""
        lane = lane_of(model)
        reply = await self._server.call("XREVRANGE", LaneKeys(lane).dead_letters, "+", "-", "COUNT", limit)
        return tuple(
            _dead_letter(lane, entry_id.decode(), pairs(flat)) for entry_id, flat in cast("list[Any]", reply)
        )

    async def check_server(self) -> tuple[str, ...]:
        """See ``Queue.check_server``."""
        return await prepare(self._server)

    async def close(self) -> None:
        """See ``Queue.close``."""
        self._server.seal()
        await self._reader.close()
        await self._server.close()


def _dead_letter(lane: str, entry_id: str, entry: dict[str, bytes]) -> DeadLetter:
    text = {name: value.decode(errors="replace") for name, value in entry.items()}
    return DeadLetter(
        entry_id=entry_id,
        job_id=f"{lane}:{text['job']}" if text.get("job") else "",
        tenant=text.get("tenant", ""),
        reason=text.get("reason", ""),
        attempts=_count(text.get("attempts")),
        committed_tokens=_count(text.get("tokens")),
    )


def _count(text: str | None) -> int:
    """A number that we wrote; 0 for what anybody else put there."""
    return int(text) if text is not None and text.isdecimal() and len(text) < 16 else 0
