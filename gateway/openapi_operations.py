"""Each operation's answers, by method and path: statuses, media types, schemas, and what they lead to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from headway.gateway.openapi_admin import KEY_BODY, USAGE_QUERY, limits_body
from headway.gateway.openapi_words import COUNT, TEXT, Schema, events, one_of, ref
from headway.queueing.messages import Priority

Content = Mapping[str, Schema]
JSON: Final = "application/json"
SSE: Final = "text/event-stream"
LAST_EVENT_ID: Final = "Last-Event-ID"

TERMS: Final[dict[str, Schema]] = {
    "X-Tenant": TEXT,
    "X-Priority": one_of(*Priority),
    "X-Deadline": {"type": "number", "exclusiveMinimum": 0, "maximum": 604_800},
    "Idempotency-Key": TEXT | {"minLength": 1, "maxLength": 255},
    "X-On-Disconnect": one_of("cancel", "detach"),
}
"""Headers of whoever posts a job."""
_ONCE: Final = {"Idempotency-Key": TERMS["Idempotency-Key"]}


@dataclass(frozen=True, slots=True)
class Operation:
    """What an operation answers; ``refusals`` are statuses whose body is the error object."""

    id: str
    answers: Mapping[int, Content]
    refusals: tuple[int, ...] = ()
    query: Mapping[str, Schema] = field(default_factory=dict[str, Schema])
    headers: Mapping[str, Schema] = field(default_factory=dict[str, Schema])
    body: Schema | None = None
    links: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """By the id of the operation that it leads to: its parameters, as OpenAPI's expressions."""


_BODY: Final = (400, 408, 413, 415)
_POSTING: Final = (*_BODY, 403, 404, 409, 429, 504)
_MOST: Final[dict[str, Schema]] = {"limit": COUNT | {"minimum": 1}, "after": TEXT | {"minLength": 1}}
_ORDER: Final[dict[str, Schema]] = {"order": one_of("asc", "desc")}


def _json(name: str) -> Content:
    return {JSON: ref(name)}


def _or_events(name: str, data: Schema) -> Content:
    return {JSON: ref(name), SSE: events(data)}


def _or_chunks(name: str, chunk: str) -> Content:
    return {JSON: ref(name), SSE: events({"anyOf": [ref(chunk), ref("Error")]}, last="[DONE]")}


def _of(parameter: str, *operations: str, at: str = "/id") -> dict[str, Mapping[str, str]]:
    return {name: {parameter: f"$response.body#{at}"} for name in operations}


_OF_A_RESPONSE: Final = ("getResponse", "listInputItems", "cancelResponse", "deleteResponse")
_OF_A_JOB: Final = ("getJob", "getJobStream", "getJobResult", "cancelJob", "endJob")
_OF_A_FILE: Final = ("retrieveFile", "downloadFile", "deleteFile")
_OF_A_BATCH: Final = ("retrieveBatch", "cancelBatch")
_OF_A_TENANT: Final = ("getTenant", "changeTenant", "replaceTenant", "removeTenant")

TENANT_OPERATIONS: Final[dict[str, Operation]] = {
    "POST /v1/chat/completions": Operation(
        "createChatCompletion",
        {200: _or_chunks("ChatCompletion", "ChatCompletionChunk")},
        _POSTING,
        headers=TERMS | {LAST_EVENT_ID: TEXT},
    ),
    "POST /v1/completions": Operation(
        "createCompletion",
        {200: _or_chunks("Completion", "Completion")},
        _POSTING,
        headers=TERMS | {LAST_EVENT_ID: TEXT},
    ),
    "POST /tokenize": Operation("tokenize", {200: _json("Tokens")}, _POSTING),
    "POST /detokenize": Operation("detokenize", {200: _json("DetokenizedText")}, _POSTING),
    "POST /v1/responses": Operation(
        "createResponse",
        {200: _or_events("Response", ref("ResponseEvent"))},
        _POSTING,
        headers=TERMS,
        links=_of("response_id", *_OF_A_RESPONSE),
    ),
    "GET /v1/responses/{response_id}": Operation(
        "getResponse",
        {200: _or_events("Response", ref("ResponseEvent"))},
        (400, 404),
        query={"stream": one_of("true", "false"), "starting_after": COUNT},
        headers={LAST_EVENT_ID: TEXT},
    ),
    "DELETE /v1/responses/{response_id}": Operation(
        "deleteResponse", {200: _json("ResponseDeleted")}, (400, 404)
    ),
    "GET /v1/responses/{response_id}/input_items": Operation(
        "listInputItems",
        {200: _json("InputItems")},
        (400, 404),
        query=_MOST | {"limit": COUNT | {"minimum": 1, "maximum": 100}} | _ORDER,
    ),
    "POST /v1/responses/{response_id}/cancel": Operation("cancelResponse", {200: _json("Response")}, (404,)),
    "GET /v1/models": Operation(
        "listModels", {200: _json("ModelList")}, links=_of("model", "retrieveModel", at="/data/0/id")
    ),
    "GET /v1/models/{model}": Operation("retrieveModel", {200: _json("Model")}, (404,)),
    "POST /v1/jobs": Operation(
        "createJob",
        {202: _json("JobAccepted")},
        _POSTING,
        headers=TERMS,
        links=_of("job_id", *_OF_A_JOB),
    ),
    "GET /v1/jobs/{job_id}": Operation("getJob", {200: _json("Job")}, (404,)),
    "DELETE /v1/jobs/{job_id}": Operation("endJob", {200: _json("JobCancel")}, (404,)),
    "POST /v1/jobs/{job_id}/cancel": Operation("cancelJob", {200: _json("JobCancel")}, (404,)),
    "GET /v1/jobs/{job_id}/result": Operation(
        "getJobResult", {200: _json("JobResult"), 202: _json("JobRecord")}, (404,)
    ),
    "GET /v1/jobs/{job_id}/stream": Operation(
        "getJobStream",
        {200: {SSE: events(ref("JobEvent"))}, 204: {}},
        (400, 404),
        query={"after": TEXT},
        headers={LAST_EVENT_ID: TEXT},
    ),
    "POST /v1/files": Operation(
        "createFile",
        {200: _json("File")},
        (*_BODY, 409, 429),
        headers=_ONCE,
        links=_of("file_id", *_OF_A_FILE),
    ),
    "GET /v1/files": Operation(
        "listFiles",
        {200: _json("FilePage")},
        (400,),
        query=_MOST | {"limit": COUNT | {"minimum": 1, "maximum": 10_000}} | _ORDER | {"purpose": TEXT},
    ),
    "GET /v1/files/{file_id}": Operation("retrieveFile", {200: _json("File")}, (404,)),
    "DELETE /v1/files/{file_id}": Operation("deleteFile", {200: _json("FileDeleted")}, (404,)),
    "GET /v1/files/{file_id}/content": Operation(
        "downloadFile", {200: {"application/octet-stream": {}}}, (404,)
    ),
    "POST /v1/batches": Operation(
        "createBatch",
        {200: _json("Batch")},
        (*_BODY, 409, 429),
        headers=_ONCE,
        links=_of("batch_id", *_OF_A_BATCH),
    ),
    "GET /v1/batches": Operation(
        "listBatches",
        {200: _json("BatchPage")},
        (400,),
        query=_MOST | {"limit": COUNT | {"minimum": 1, "maximum": 100}},
    ),
    "GET /v1/batches/{batch_id}": Operation("retrieveBatch", {200: _json("Batch")}, (404,)),
    "POST /v1/batches/{batch_id}/cancel": Operation("cancelBatch", {200: _json("Batch")}, (404,)),
}

ADMIN_OPERATIONS: Final[dict[str, Operation]] = {
    "GET /admin/tenants": Operation(
        "listTenants",
        {200: _json("TenantList")},
    ),
    "POST /admin/tenants": Operation(
        "createTenant",
        {201: _json("Tenant")},
        (*_BODY, 409),
        body=limits_body(names_tenant=True),
        links=_of("tenant", *_OF_A_TENANT, at="/tenant"),
    ),
    "GET /admin/tenants/{tenant}": Operation("getTenant", {200: _json("TenantStanding")}, (400,)),
    "PATCH /admin/tenants/{tenant}": Operation(
        "changeTenant", {200: _json("Tenant")}, _BODY, body=limits_body(names_tenant=False)
    ),
    "PUT /admin/tenants/{tenant}": Operation(
        "replaceTenant", {200: _json("Tenant")}, _BODY, body=limits_body(names_tenant=False)
    ),
    "DELETE /admin/tenants/{tenant}": Operation("removeTenant", {200: _json("TenantDeleted")}, (400, 404)),
    "GET /admin/keys": Operation("listKeys", {200: _json("KeyList")}),
    "POST /admin/keys": Operation(
        "createKey", {201: _json("NewKey")}, _BODY, body=KEY_BODY, links=_of("key_id", "revokeKey")
    ),
    "DELETE /admin/keys/{key_id}": Operation(
        "revokeKey", {200: _json("KeyDeleted")}, (400, 404, 409), query={"open": one_of("true", "false")}
    ),
    "GET /admin/usage": Operation("getUsage", {200: _json("DayUsage")}, (400,), query=USAGE_QUERY),
}

OPEN_OPERATIONS: Final[dict[str, Operation]] = {
    "GET /": Operation("index", {200: _json("Index")}),
    "GET /livez": Operation("isAlive", {200: _json("Alive")}),
    "GET /healthz": Operation("isHealthy", {200: _json("Health"), 503: _json("Health")}),
    "GET /readyz": Operation(
        "isReady",
        {200: _json("Readiness"), 503: _json("Readiness")},
        (400,),
        query={"workers": COUNT | {"maximum": 999_999}},
    ),
    "GET /metrics": Operation("metrics", {200: {"text/plain": TEXT}}),
}
"""Without any key."""
