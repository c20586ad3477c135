"""Headway's own queue: jobs posted and followed by the light client, without HTTP."""

from __future__ import annotations

import json
from typing import Any, Final

from headway.queueing.client import Client
from headway.queueing.errors import (
    InvalidJobError,
    NotAllowedError,
    QueueFullError,
    QueueingError,
    QueueUnavailableError,
    QuotaExceededError,
)
from headway.queueing.events import EndEvent, EndReason
from headway.queueing.messages import Job
from headway.services.bench.answer import Answer, Outcome, Planned
from headway.services.bench.openai_target import WHOLE
from headway.services.bench.settings import BenchSettings
from headway.services.bench.target import Facts, Now
from headway.services.connection import checked_queue
from headway.services.errors import ServiceError, UsageError
from headway.services.simulated_tenants import CLASS_NAMES
from headway.services.traffic import Demand

_STATUS: Final[tuple[tuple[type[QueueingError], int], ...]] = (
    (QuotaExceededError, 429),
    (QueueFullError, 503),
    (QueueUnavailableError, 503),
    (NotAllowedError, 403),
    (InvalidJobError, 400),
)
"""What the gateway would answer."""


class NativeTarget:
    """One queue server."""

    def __init__(self, settings: BenchSettings) -> None:
        self._settings = settings
        self._client: Client | None = None
        self._model = settings.model or ""

    async def open(self) -> Facts:
        """The model that its workers serve."""
        queue, _ = await checked_queue(self._settings.url)
        self._client = Client(queue)
        cards = [card for card in await queue.workers() if card.state == "ready"]
        names = sorted({card.model for card in cards})
        if not names:
            raise ServiceError("no worker is ready at this queue", hint="headway worker, or headway up")
        if self._settings.model is None and len(names) != 1:
            raise UsageError(f"{len(names)} models are served here", hint=f"--model {' or '.join(names)}")
        self._model = self._settings.model or names[0]
        if self._model not in names:
            raise UsageError(f"no worker serves {self._model}", hint=f"--model {' or '.join(names)}")
        mine = [card for card in cards if card.model == self._model]
        shown = {"workers": len(mine), "max_running": sum(card.max_running for card in mine)}
        context = min(card.max_model_len for card in mine)
        return Facts(self._model, context or None, f"headway {mine[0].version}", shown)

    async def count(self, text: str) -> int | None:
        """By a worker's tokenizer."""
        told = await self._connected.run(
            Job.model_validate(
                {
                    "model": self._model,
                    **self._input(text),
                    "task": {"kind": "tokenize"},
                    "priority": "interactive",
                }
                | {"sampling": {"max_tokens": 1}}
            )
        )
        return len(json.loads(told.choices[0].text)["token_ids"]) if told.choices else None

    async def probe(self) -> None:
        """One short answer, however it ends."""
        answer = Answer(Planned(0, 0.0, Demand(0.0, "", 0, 1, 1)))
        await self.prepare(answer.planned, "Say a word.").ask(answer, lambda: 0.0)

    def _input(self, text: str) -> dict[str, Any]:
        if self._settings.api == "chat":
            return {"messages": ({"role": "user", "content": text},)}
        return {"prompt": text}

    def prepare(self, planned: Planned, text: str) -> _Prepared:
        """Its job."""
        demand, settings = planned.demand, self._settings
        fields: dict[str, Any] = {
            "model": self._model,
            **self._input(text),
            "tenant": demand.tenant or "default",
            "priority": CLASS_NAMES[demand.priority],
            "deadline_seconds": demand.deadline_seconds,
            "sampling": {
                "max_tokens": demand.answer_tokens,
                "temperature": settings.temperature,
                "ignore_eos": settings.ignores_eos,
            },
        }
        return _Prepared(Job.model_validate(fields), self._connected)

    @property
    def _connected(self) -> Client:
        if self._client is None:
            raise RuntimeError("open() comes first")
        return self._client

    async def close(self) -> None:
        """Its connections."""
        if self._client is not None:
            await self._client.close()


class _Prepared:
    """One job, ready to be posted."""

    __slots__ = ("_client", "_job")

    def __init__(self, job: Job, client: Client) -> None:
        self._job = job
        self._client = client

    async def ask(self, answer: Answer, now: Now) -> None:
        """Post it and follow its tokens; a job that is left is cancelled."""
        answer.sent = now()
        try:
            answer.job_id = (await self._client.submit(self._job)).job_id
            answer.connected = now()
            answer.status = 200
            await self._follow(answer, now)
        except QueueingError as error:
            answer.status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
            answer.end(Outcome.BROKEN if answer.job_id else Outcome.REFUSED, now(), str(error))
        finally:
            if answer.job_id and answer.outcome in (None, Outcome.CANCELLED):
                await self._client.cancel(answer.job_id, "left by headway bench")

    async def _follow(self, answer: Answer, now: Now) -> None:
        async for event in self._client.stream(answer.job_id):
            at = now()
            if isinstance(event, EndEvent):
                self._end(event, answer, at)
                return
            if event.token_ids:
                answer.times.append(at)
                answer.counts.append(len(event.token_ids))
            cancel_after = answer.planned.cancel_after
            if cancel_after is not None and len(answer.times) >= cancel_after:
                answer.end(Outcome.CANCELLED, at)
                return
        answer.end(Outcome.BROKEN, now(), "the stream ended without its last event")

    @staticmethod
    def _end(event: EndEvent, answer: Answer, at: float) -> None:
        answer.finish_reason = event.reason.value
        answer.told_prompt_tokens = event.usage.prompt_tokens
        answer.told_answer_tokens = event.usage.completion_tokens
        answer.told_cached_tokens = event.usage.cached_tokens
        if answer.finish_reason in WHOLE:
            answer.end(Outcome.FINISHED, at)
        elif event.reason is EndReason.DEADLINE and not answer.times:  # as the gateway tells it
            answer.status = 504
            answer.end(Outcome.REFUSED, at, "deadline: it could not be answered in time")
        else:
            told = "" if event.error is None else f"{event.error.code}: {event.error.message}"
            answer.end(Outcome.FAILED, at, told or f"ended with {answer.finish_reason}")
