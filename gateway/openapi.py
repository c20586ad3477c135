"""``/openapi.json``: the framework's document, with every answer of every operation written down.

Handlers make their answers by themselves, so the framework knows neither what they look like nor which
statuses there are. What stands here is checked against real answers by ``make conformance``.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from headway.gateway.openapi_admin import ADMIN_SCHEMAS
from headway.gateway.openapi_chat import CHAT_SCHEMAS
from headway.gateway.openapi_jobs import FILE_SCHEMAS, JOB_SCHEMAS
from headway.gateway.openapi_operations import (
    ADMIN_OPERATIONS,
    OPEN_OPERATIONS,
    TENANT_OPERATIONS,
    Content,
    Operation,
)
from headway.gateway.openapi_responses import RESPONSE_SCHEMAS
from headway.gateway.openapi_words import COUNT, TEXT, Schema, ref
from headway.gateway.schema import json_body

SCHEMAS: Final = CHAT_SCHEMAS | RESPONSE_SCHEMAS | JOB_SCHEMAS | FILE_SCHEMAS | ADMIN_SCHEMAS

_REFUSED: Final[Content] = {"application/json": ref("Error")}
_EVERYWHERE: Final = (431, 500)
_OF_TENANTS: Final = (401, 429, 503)
_OF_ADMINS: Final = (401, 403, 503)
_HEADERS: Final = {
    "x-request-id": {"required": True, "schema": TEXT},
    "openai-processing-ms": {"required": True, "schema": COUNT},
}
_RETRY: Final = {
    "retry-after": {"required": False, "schema": COUNT},
    "x-headway-reason": {"required": False, "schema": TEXT},
}
_KEYS: Final = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key; none is asked for as long as none exists.",
    },
    "adminKey": {"type": "http", "scheme": "bearer", "description": "An administrator's key."},
}


def describe(app: FastAPI) -> None:
    """Have the app serve the whole document; every route of the app needs an entry here (KeyError)."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, routes=app.routes)
            app.openapi_schema = _described(made)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # FastAPI documents this way to extend it


def _described(document: dict[str, Any]) -> dict[str, Any]:
    for path, ways in document["paths"].items():
        for method, made in ways.items():
            _describe(made, f"{method.upper()} {path}")
    document["components"] = {"schemas": SCHEMAS, "securitySchemes": _KEYS}
    return document


def _describe(made: dict[str, Any], name: str) -> None:
    operation, refusals, security = _entry(name)
    made["operationId"] = operation.id
    made["security"] = security
    statuses: dict[int, Content] = dict.fromkeys({*refusals, *_EVERYWHERE}, _REFUSED)
    statuses |= operation.answers
    made["responses"] = {
        str(status): _response(status, content, operation) for status, content in sorted(statuses.items())
    }
    for parameter in made.get("parameters", ()):
        parameter["schema"] = {"type": "string", "minLength": 1} | _untitled(parameter["schema"])
    made["parameters"] = [
        *made.get("parameters", ()),
        *_parameters("query", operation.query),
        *_parameters("header", operation.headers),
    ]
    if operation.body is not None:
        made |= json_body(operation.body)


def _entry(name: str) -> tuple[Operation, set[int], list[dict[str, list[str]]]]:
    if name in TENANT_OPERATIONS:
        operation = TENANT_OPERATIONS[name]
        # As long as no key exists, none is asked for.
        return operation, {*operation.refusals, *_OF_TENANTS}, [{"key": []}, {}]
    if name in ADMIN_OPERATIONS:
        operation = ADMIN_OPERATIONS[name]
        return operation, {*operation.refusals, *_OF_ADMINS}, [{"adminKey": []}]
    operation = OPEN_OPERATIONS[name]
    return operation, {*operation.refusals}, []


def _response(status: int, content: Content, operation: Operation) -> dict[str, Any]:
    made: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if content:
        made["content"] = {kind: {"schema": schema} if schema else {} for kind, schema in content.items()}
    if status != 431:  # that one is refused before there is a request
        made["headers"] = _HEADERS | (_RETRY if status in {202, 429, 503} else {})
    if operation.links and status < 300:
        made["links"] = {
            name: {"operationId": name, "parameters": dict(parameters)}
            for name, parameters in operation.links.items()
        }
    return made


def _parameters(place: str, schemas: Mapping[str, Schema]) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": place, "required": False, "schema": schema} for name, schema in schemas.items()
    ]


def _untitled(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name != "title"}
