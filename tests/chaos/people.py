"""Those outside: producers who post until they are heard, readers who come back until they saw the end."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

import httpx
from tests.chaos.workload import Order, Outcome, Reading

from headway.queueing.client import Client
from headway.queueing.errors import QueueFullError, QueueingError, QueueUnavailableError, QuotaExceededError
from headway.queueing.events import EndEvent, StreamEvent

PAUSE_SECONDS: Final = 0.25
HTTP_SECONDS: Final = httpx.Timeout(12.0, connect=3.0)


class People:
    """Everyone who uses the service over one Redis link and one gateway."""

    def __init__(self, client: Client, gateway_url: str) -> None:
        self._client = client
        self._http = httpx.AsyncClient(
            base_url=gateway_url, timeout=HTTP_SECONDS, limits=httpx.Limits(max_connections=None)
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def live(self, order: Order, outcome: Outcome) -> None:
        """One job from its post to the last reader's last event."""
        outcome.job_id = await self._post(order, outcome)
        reading = []
        if order.read_over_redis:
            reading.append(self._read_over_redis(outcome))
        if order.read_over_http:
            reading.append(self._read_over_http(outcome))
        if order.cancel_after_seconds is not None:
            reading.append(self._cancel(outcome, order.cancel_after_seconds))
        await asyncio.gather(*reading)

    # -- producers ------------------------------------------------------------------------------------

    async def _post(self, order: Order, outcome: Outcome) -> str:
        while True:
            outcome.tries += 1
            job_id = await (self._post_over_http(order) if order.posted_over_http else self._submit(order))
            if job_id is not None:
                return job_id
            await asyncio.sleep(PAUSE_SECONDS)

    async def _submit(self, order: Order) -> str | None:
        try:
            return (await self._client.submit(order.job, key=f"order-{order.number}")).job_id
        except (QueueUnavailableError, QueueFullError, QuotaExceededError):  # the next try tells
            return None

    async def _post_over_http(self, order: Order) -> str | None:
        body = order.job.model_dump(mode="json", exclude_none=True)
        try:
            answer = await self._http.post("/v1/jobs", json=body)
        except httpx.HTTPError:
            return None
        if answer.status_code in (429, 503, 502, 504):
            return None
        if answer.status_code != 202:
            raise RuntimeError(f"order {order.number} was answered {answer.status_code}: {answer.text}")
        job_id: str = answer.json()["id"]
        return job_id

    async def _cancel(self, outcome: Outcome, after_seconds: float) -> None:
        await asyncio.sleep(after_seconds)
        assert outcome.job_id is not None
        while not outcome.was_cancelled:
            try:
                await self._client.cancel(outcome.job_id, "changed my mind")
                outcome.was_cancelled = True
            except QueueUnavailableError:
                await asyncio.sleep(PAUSE_SECONDS)

    # -- readers --------------------------------------------------------------------------------------

    async def _read_over_redis(self, outcome: Outcome) -> None:
        reading = Reading("redis")
        outcome.readings.append(reading)
        assert outcome.job_id is not None
        try:
            async for event in self._client.stream(outcome.job_id):
                _note(reading, event)
        except QueueingError as error:
            outcome.problems.append(f"a reader over Redis met {type(error).__name__}: {error}")

    async def _read_over_http(self, outcome: Outcome) -> None:
        reading = Reading("http")
        outcome.readings.append(reading)
        while not reading.ends:
            try:
                await self._follow(outcome, reading)
            except (httpx.HTTPError, OSError):
                reading.reconnects += 1
            if not reading.ends:
                await asyncio.sleep(PAUSE_SECONDS)

    async def _follow(self, outcome: Outcome, reading: Reading) -> None:
        """One connection; returns when it ends, in whatever way."""
        last = reading.cursors[-1] if reading.cursors else None
        headers = {} if last is None else {"last-event-id": f"{last[0]}-{last[1]}"}
        async with self._http.stream("GET", f"/v1/jobs/{outcome.job_id}/stream", headers=headers) as answer:
            if answer.status_code in (429, 502, 503, 504):
                return
            if answer.status_code != 200:
                text = (await answer.aread()).decode(errors="replace")
                outcome.problems.append(f"a reader over HTTP was answered {answer.status_code}: {text}")
                reading.ends.append(("refused", str(answer.status_code)))
                return
            buffer = ""
            async for text in answer.aiter_text():
                *blocks, buffer = (buffer + text).split("\n\n")
                for block in blocks:
                    _note_block(reading, block)


def _note_block(reading: Reading, block: str) -> None:
    fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
    content: dict[str, Any] = json.loads(fields.get("data", "{}"))
    if fields.get("event") == "tokens":
        if reading.ends:
            reading.after_end += 1
        tokens, part = map(int, fields["id"].split("-"))
        reading.cursors.append((tokens, part, len(content["token_ids"])))
        reading.texts.append(content["text"])
    elif fields.get("event") == "end":
        reading.texts += [choice["tail"] for choice in content["choices"]]
        reading.ends.append((content["reason"], (content["error"] or {}).get("code", "")))


def _note(reading: Reading, event: StreamEvent) -> None:
    if reading.ends:
        reading.after_end += 1
    if isinstance(event, EndEvent):
        reading.texts += [choice.tail for choice in event.choices]
        reading.ends.append((event.reason.value, event.error.code if event.error else ""))
    else:
        reading.cursors.append((event.cursor.tokens, event.cursor.part, len(event.token_ids)))
        reading.texts.append(event.text)
