"""Any server that speaks OpenAI's chat or completions, streamed."""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping
from typing import Any, Final, cast

import orjson

from headway.services.bench.answer import Answer, Outcome, Planned
from headway.services.bench.settings import BenchSettings
from headway.services.bench.sse_connection import Address, Dialler, SseConnection, request_bytes
from headway.services.bench.target import Facts, Now
from headway.services.errors import NotReachableError, ServiceError, UsageError
from headway.services.simulated_tenants import CLASS_NAMES
from headway.services.traffic import Demand

ASK_SECONDS: Final = 60.0
"""For what is asked before the load."""
WHOLE: Final = frozenset({"stop", "length"})
OWN_LIMITS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS})
"""What a connection fails with where this machine has no more files or ports for it."""
_UNAUTHORISED: Final = (401, 403)


class OpenAiTarget:
    """One server, by its base URL."""

    def __init__(self, settings: BenchSettings) -> None:
        try:
            self._address = Address.parse(settings.url)
        except ValueError as error:
            raise UsageError(f"--url: {error}", hint="--url http://127.0.0.1:8000") from None
        self._settings = settings
        self._keys = dict(settings.tenant_keys)
        self._dialler = Dialler(self._address)
        self._model = settings.model or ""
        self._has_tokenizer = True
        self._path = "/v1/chat/completions" if settings.api == "chat" else "/v1/completions"

    async def open(self) -> Facts:
        """The model it serves, and a short answer as proof that it streams and counts."""
        listed = await self._exchange("GET", "/v1/models")
        if listed.status in _UNAUTHORISED:
            raise ServiceError(
                f"{self._settings.url} wants another API key: {_words(listed.body)}",
                hint="put it into HEADWAY_API_KEY",
            )
        if listed.status != 200:
            raise ServiceError(
                f"{self._settings.url}/v1/models answers {listed.status}: {_words(listed.body)}",
                hint="give the base URL of an OpenAI-compatible server, without /v1/chat/completions",
            )
        model = self._choose(_models(listed.body))
        self._model = str(model["id"])
        context = model.get("max_model_len")
        server = listed.headers.get(b"server", b"").decode(errors="replace") or str(model.get("owned_by", ""))
        await self._try()
        return Facts(self._model, context if isinstance(context, int) else None, server, model)

    def _choose(self, models: list[dict[str, Any]]) -> dict[str, Any]:
        wanted = self._settings.model
        for model in models:
            if model["id"] == wanted:
                return model
        names = ", ".join(str(model["id"]) for model in models[:8])
        if wanted is not None:
            raise UsageError(
                f"{self._settings.url} serves no model {wanted}", hint=f"--model: {names or 'none'}"
            )
        if len(models) != 1:
            raise UsageError(
                f"{self._settings.url} serves {len(models)} models",
                hint=f"--model with one of: {names or 'none'}",
            )
        return models[0]

    async def probe(self) -> None:
        """One short answer, however it ends."""
        await self._short_answer("Say a word.", 1)

    async def _short_answer(self, text: str, tokens: int) -> Answer:
        answer = Answer(Planned(0, 0.0, Demand(0.0, "", 1, 1, tokens)))
        await self.prepare(answer.planned, text).ask(answer, lambda: 0.0)
        return answer

    async def _try(self) -> None:
        """What fails here would fail for every request."""
        answer = await self._short_answer("Say a word.", 4)
        if answer.outcome is not Outcome.FINISHED:
            told = f"{answer.status or 'no answer'}: {answer.error}"
            hint = None
            if "ignore_eos" in answer.error:
                hint = "--no-ignore-eos for servers that do not know ignore_eos"
            raise ServiceError(f"{self._settings.url} does not answer a first request: {told}", hint=hint)
        if answer.told_answer_tokens is None and not self._settings.counts_events:
            raise ServiceError(
                f"{self._settings.url} sends no usage at a stream's end, so its tokens cannot be counted",
                hint="--count-events takes each event with text for a token",
            )

    async def count(self, text: str) -> int | None:
        """By ``/tokenize``, else by the usage of an answer of one token."""
        if self._has_tokenizer:
            told = await self._tokenize(text)
            if told is not None:
                return told
            self._has_tokenizer = False
        return (await self._short_answer(text, 1)).told_prompt_tokens

    async def _tokenize(self, text: str) -> int | None:
        asked: dict[str, Any] = {"model": self._model}
        if self._settings.api == "chat":
            asked["messages"] = [{"role": "user", "content": text}]
        else:
            asked["prompt"] = text
        answer = await self._exchange("POST", "/tokenize", orjson.dumps(asked))
        try:
            told = orjson.loads(answer.body)
            return int(told["count"]) if answer.status == 200 else None
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            return None

    def prepare(self, planned: Planned, text: str) -> _Prepared:
        """Its bytes."""
        demand, settings = planned.demand, self._settings
        body: dict[str, Any] = {"model": self._model}
        if settings.api == "chat":
            body["messages"] = [{"role": "user", "content": text}]
        else:
            body["prompt"] = text
        body |= {"max_tokens": demand.answer_tokens, "temperature": settings.temperature, "stream": True}
        body["stream_options"] = {"include_usage": True}
        if settings.ignores_eos:
            body["ignore_eos"] = True
        headers = self._headers(demand.tenant)
        if settings.tenants is not None and demand.tenant:  # else as any client would ask
            headers["X-Tenant"] = demand.tenant
            headers["X-Priority"] = CLASS_NAMES[demand.priority]
        if demand.deadline_seconds is not None:
            headers["X-Deadline"] = f"{demand.deadline_seconds:g}"
        request = request_bytes(self._address, "POST", self._path, headers, orjson.dumps(body))
        return _Prepared(request, self._dialler, settings.slow_bytes_per_second if planned.is_slow else 0.0)

    def _headers(self, tenant: str = "") -> dict[str, str]:
        key = self._keys.get(key_name(tenant)) or self._settings.api_key
        return {"Authorization": f"Bearer {key}"} if key else {}

    async def _exchange(self, method: str, path: str, body: bytes = b"") -> SseConnection:
        request = request_bytes(self._address, method, path, self._headers(), body)
        try:
            await self._dialler.prepare()
            return await self._dialler.exchange(request, ASK_SECONDS)
        except (OSError, TimeoutError) as error:
            raise NotReachableError(
                f"nobody answers at {self._settings.url}: {str(error) or 'no answer in time'}",
                hint="headway up serves http://127.0.0.1:8000; --url names another server",
            ) from None

    async def close(self) -> None:
        """Nothing is held: each request has a connection of its own."""


class _Prepared:
    """One request, ready to be sent."""

    __slots__ = ("_bytes_per_second", "_dialler", "_request")

    def __init__(self, request: bytes, dialler: Dialler, bytes_per_second: float) -> None:
        self._request = request
        self._dialler = dialler
        self._bytes_per_second = bytes_per_second

    async def ask(self, answer: Answer, now: Now) -> None:
        """Send it and note what comes back."""
        ear = _Ear(answer, now)
        connection = SseConnection(self._request, ear.hear, bytes_per_second=self._bytes_per_second)
        ear.connection = connection
        answer.sent = now()
        try:
            await self._dialler.connect(connection, is_slow=bool(self._bytes_per_second))
            answer.connected = now()
            await connection.ended
        except OSError as error:
            is_ours = error.errno in OWN_LIMITS
            answer.end(Outcome.UNSENT if is_ours else Outcome.BROKEN, now(), f"no connection: {error}")
        finally:
            connection.close()
            answer.status = connection.status
            answer.job_id = connection.headers.get(b"x-headway-job-id", b"").decode(errors="replace")
        _judge(answer, connection, now())


def _judge(answer: Answer, connection: SseConnection, at: float) -> None:
    """How it ended, where its stream did not say."""
    if connection.status not in (0, 200):
        answer.end(Outcome.REFUSED, at, _words(connection.body))
    elif not connection.status:
        answer.end(Outcome.BROKEN, at, connection.problem)
    elif not answer.finish_reason:
        told = "the stream ended without a finish reason" if connection.is_whole else connection.problem
        answer.end(Outcome.BROKEN, at, f"{told}: {_words(connection.body)}" if connection.body else told)
    elif answer.finish_reason in WHOLE:
        answer.end(Outcome.FINISHED, at)
    else:
        answer.end(Outcome.FAILED, at, f"finish_reason {answer.finish_reason}")


class _Ear:
    """Hears one stream's events."""

    __slots__ = ("_answer", "_now", "connection")

    def __init__(self, answer: Answer, now: Now) -> None:
        self._answer = answer
        self._now = now
        self.connection: SseConnection | None = None

    def hear(self, event: bytes) -> None:
        """Note one event."""
        if event == b"[DONE]":
            return
        at, answer = self._now(), self._answer
        try:
            chunk: Any = orjson.loads(event)
        except orjson.JSONDecodeError:
            answer.end(Outcome.FAILED, at, f"an event that is no JSON: {event[:100]!r}")
            return
        for choice in chunk.get("choices") or ():
            if has_text(choice):
                answer.times.append(at)
            if choice.get("finish_reason"):
                answer.finish_reason = str(choice["finish_reason"])
        if usage := chunk.get("usage"):
            answer.told_prompt_tokens = usage.get("prompt_tokens")
            answer.told_answer_tokens = usage.get("completion_tokens")
            told: dict[str, Any] = usage.get("prompt_tokens_details") or {}
            answer.told_cached_tokens = told.get("cached_tokens")
        if error := chunk.get("error"):
            answer.end(Outcome.FAILED, at, error_words(error))
        cancel_after = answer.planned.cancel_after
        if cancel_after is not None and len(answer.times) >= cancel_after and self.connection is not None:
            answer.end(Outcome.CANCELLED, at)
            self.connection.close()


def has_text(choice: Mapping[str, Any]) -> bool:
    """Whether a chunk's choice brings something of the answer: text, thoughts, or a part of a call."""
    delta = choice.get("delta")
    if delta is None:
        return bool(choice.get("text"))
    return bool(
        delta.get("content")
        or delta.get("reasoning_content")
        or delta.get("reasoning")
        or delta.get("tool_calls")
    )


def error_words(error: Any) -> str:
    """OpenAI's error object as ``code: message``; whatever else came, as it is."""
    if not isinstance(error, dict):
        return str(error)
    told = cast("dict[str, Any]", error)
    return f"{told.get('code') or told.get('type') or 'error'}: {told.get('message', '')}"


def key_name(tenant: str) -> str:
    """How a tenant is written in the name of an environment variable."""
    return re.sub(r"[^A-Z0-9]", "_", tenant.upper())


def _words(body: bytes | bytearray) -> str:
    try:
        told: Any = orjson.loads(body)
        return error_words(told.get("error", told))
    except (orjson.JSONDecodeError, AttributeError):
        return bytes(body[:300]).decode(errors="replace").strip()


def _models(body: bytes | bytearray) -> list[dict[str, Any]]:
    try:
        told: Any = orjson.loads(body)
        return [dict(model) for model in told["data"] if model["id"]]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise ServiceError(f"/v1/models is no list of models: {_words(body)}") from None
