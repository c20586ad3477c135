"""Refusals as the official client tells them: its exceptions, all four members, and what it tries again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionChunk
from tests.conformance.service import Service, say
from tests.conformance.test_openai import text_of
from tests.gateway.scripted_worker import Script

from headway.queueing.events import EndReason, JobError

Ask = Callable[[OpenAI], object]


def chat(**fields: Any) -> Ask:
    asked: dict[str, Any] = {"model": "tiny", "messages": say("hi")} | fields
    return lambda client: client.chat.completions.create(**asked)


CASES: list[tuple[Ask, type[openai.APIStatusError], str, str | None]] = [
    (chat(temperature=3), openai.BadRequestError, "invalid_value", "temperature"),
    (chat(n="two"), openai.BadRequestError, "invalid_type", "n"),
    (chat(extra_body={"tempo": 1}), openai.BadRequestError, "unknown_parameter", "tempo"),
    (chat(audio={"voice": "alloy", "format": "wav"}), openai.BadRequestError, "unsupported", "audio"),
    (chat(messages=[]), openai.BadRequestError, "invalid_value", "messages"),
    (
        chat(messages=[{"role": "user"}]),
        openai.BadRequestError,
        "missing_required_parameter",
        "messages[0].content",
    ),
    (chat(model="gpt-5"), openai.NotFoundError, "model_not_found", "model"),
    (
        chat(
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "nonsense"}},
            }
        ),
        openai.BadRequestError,
        "invalid_grammar",
        "response_format.json_schema.schema",
    ),
    (
        lambda client: client.completions.create(model="tiny", prompt="a", suffix="b"),
        openai.BadRequestError,
        "unsupported",
        "suffix",
    ),
    (
        lambda client: client.responses.create(model="tiny", input="a", tools=[{"type": "web_search"}]),
        openai.BadRequestError,
        "unsupported",
        "tools",
    ),
    (
        lambda client: client.responses.create(model="tiny", input="a", previous_response_id="resp_x"),
        openai.BadRequestError,
        "previous_response_not_found",
        "previous_response_id",
    ),
    (
        lambda client: client.responses.retrieve("resp_nowhere"),
        openai.NotFoundError,
        "response_not_found",
        "response_id",
    ),
    (lambda client: client.models.retrieve("gpt-5"), openai.NotFoundError, "model_not_found", "model"),
    (lambda client: client.files.retrieve("file-1"), openai.NotFoundError, "file_not_found", "id"),
    (lambda client: client.batches.retrieve("batch_1"), openai.NotFoundError, "batch_not_found", None),
    (
        lambda client: client.batches.create(
            input_file_id="file-1", endpoint="/v1/chat/completions", completion_window="24h"
        ),
        openai.BadRequestError,
        "file_not_found",
        "input_file_id",
    ),
    (
        lambda client: client.embeddings.create(model="tiny", input="a"),
        openai.NotFoundError,
        "not_found",
        None,
    ),
]


@pytest.mark.parametrize(
    ("ask", "kind", "code", "param"), CASES, ids=[f"{case[2]}-{case[3]}" for case in CASES]
)
def test_a_refusal_has_its_class_and_all_four_members(
    client: OpenAI, ask: Ask, kind: type[openai.APIStatusError], code: str, param: str | None
) -> None:
    with pytest.raises(kind) as refused:
        ask(client)
    error = refused.value
    assert (error.code, error.param, error.type) == (code, param, "invalid_request_error")
    assert isinstance(error.body, dict)
    assert set(error.body) == {"message", "type", "param", "code"}
    assert error.body["message"]
    assert error.request_id


@pytest.mark.parametrize("key", ["hw-not-a-key", ""])
def test_a_wrong_key_is_an_authentication_error(service: Service, key: str) -> None:
    with (
        OpenAI(base_url=service.base_url, api_key=key or "x", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError) as refused,
    ):
        stranger.models.list()
    assert refused.value.code == "invalid_api_key"


class Counted:
    """A client that tries again twice, and how often it asked."""

    def __init__(self, service: Service) -> None:
        self.requests = 0
        http = openai.DefaultHttpxClient(event_hooks={"request": [self._count]})
        self.client = OpenAI(
            base_url=service.base_url, api_key=service.key, max_retries=2, timeout=20, http_client=http
        )

    def _count(self, request: object) -> None:
        del request
        self.requests += 1


@pytest.fixture
def counted(service: Service) -> Iterator[Counted]:
    made = Counted(service)
    with made.client:
        yield made


FAILURES: list[tuple[Script, type[openai.APIStatusError], int, str]] = [
    (
        Script(pieces=(), reason=EndReason.ERROR, error=JobError("engine_error", "out of memory")),
        openai.InternalServerError,
        500,
        "engine_error",
    ),
    (Script(pieces=(), reason=EndReason.DEADLINE), openai.InternalServerError, 504, "deadline_exceeded"),
    (Script(pieces=(), reason=EndReason.CANCELLED), openai.ConflictError, 409, "cancelled"),
    (
        Script(
            pieces=(),
            reason=EndReason.ERROR,
            error=JobError("context_length_exceeded", "the prompt is too long", "messages"),
        ),
        openai.BadRequestError,
        400,
        "context_length_exceeded",
    ),
]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(("script", "kind", "status", "code"), FAILURES, ids=[case[3] for case in FAILURES])
def test_what_cannot_work_again_is_not_tried_again(
    service: Service,
    counted: Counted,
    script: Script,
    kind: type[openai.APIStatusError],
    status: int,
    code: str,
    streams: bool,
) -> None:
    with service.following(script), pytest.raises(kind) as failed:
        counted.client.chat.completions.create(model="tiny", messages=say("hi"), stream=streams)
    assert (failed.value.status_code, failed.value.code, counted.requests) == (status, code, 1)


def test_the_same_idempotency_key_with_another_body_is_a_conflict_once(counted: Counted) -> None:
    headers = {"Idempotency-Key": "once"}
    first = counted.client.chat.completions.create(model="tiny", messages=say("a"), extra_headers=headers)
    again = counted.client.chat.completions.create(model="tiny", messages=say("a"), extra_headers=headers)
    assert again.id == first.id
    with pytest.raises(openai.ConflictError) as refused:
        counted.client.chat.completions.create(model="tiny", messages=say("b"), extra_headers=headers)
    assert (refused.value.code, refused.value.param) == ("idempotency_conflict", "Idempotency-Key")
    assert counted.requests == 3


def test_a_limit_is_a_rate_limit_error_that_says_when_to_come_back(
    service: Service, counted: Counted
) -> None:
    with service.limited(rpm=1):
        counted.client.chat.completions.create(model="tiny", messages=say("a"))
        with pytest.raises(openai.RateLimitError) as refused:
            counted.client.with_options(max_retries=0).chat.completions.create(
                model="tiny", messages=say("b")
            )
    error = refused.value
    assert (error.code, error.type) == ("requests_per_minute_exceeded", "requests")
    assert 0 < int(error.response.headers["retry-after"]) <= 60
    assert error.response.headers["x-ratelimit-remaining-requests"] == "0"


def test_a_full_tenant_is_asked_again_after_the_time_that_it_says(service: Service, client: OpenAI) -> None:
    """The one place is free again before the second try, which the client makes by itself."""
    tries: list[object] = []

    def leave_before_the_second_try(request: object) -> None:
        tries.append(request)
        if len(tries) == 2:
            client.responses.cancel(waiting.id)

    hooks = {"request": [leave_before_the_second_try]}
    with (
        service.limited(concurrency=1),
        OpenAI(
            base_url=service.base_url,
            api_key=service.key,
            max_retries=2,
            http_client=openai.DefaultHttpxClient(event_hooks=hooks),
        ) as patient,
    ):
        with service.following(Script(hold_at=0)):
            claimed = len(service.seen)
            waiting = client.responses.create(model="tiny", input="say wait", background=True)
            service.until_seen(claimed + 1)
        answer = patient.chat.completions.create(model="tiny", messages=say("got it"))
    assert answer.choices[0].message.content == "got it"
    assert len(tries) == 2


def test_a_stream_that_breaks_off_is_an_api_error(service: Service, client: OpenAI) -> None:
    broken = Script(reason=EndReason.ERROR, error=JobError("engine_error", "out of memory"))
    with service.following(broken):
        stream = client.chat.completions.create(model="tiny", messages=say("hi"), stream=True)
        chunks: list[ChatCompletionChunk] = []
        with pytest.raises(openai.APIError, match="out of memory") as failed:
            chunks.extend(stream)
    assert text_of(chunks) == "Hello, world!"
    assert (failed.value.code, failed.value.type) == ("engine_error", "server_error")


@pytest.mark.parametrize("streams", [False, True])
def test_a_timeout_is_the_clients_and_cancels_the_job(
    service: Service, client: OpenAI, streams: bool
) -> None:
    def ask() -> list[object]:
        return list(hasty.chat.completions.create(model="tiny", messages=say("hi"), stream=streams))

    before, hasty = set(service.worker.claimed), client.with_options(timeout=0.3)
    with service.following(Script(hold_at=0)), pytest.raises(openai.APITimeoutError):
        ask()
    (job_id,) = set(service.worker.claimed) - before
    assert service.until_ended(job_id) == "cancelled"
