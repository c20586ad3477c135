"""Schemas of what administrators, machines and the index get, and of what administrators post."""

from __future__ import annotations

from typing import Any, Final

from headway.gateway.openapi_words import (
    COUNT,
    FLAG,
    INTEGER,
    NUMBER,
    TEXT,
    Schema,
    array,
    listed,
    nullable,
    obj,
    one_of,
    page,
    tagged,
)
from headway.gateway.openapi_words import ref as at
from headway.gateway.schema import self_contained
from headway.queueing.messages import MODEL_PATTERN, TENANT_PATTERN, Priority
from headway.queueing.tenants import TenantLimits

_RATE: Final = nullable(obj({"remaining": NUMBER, "reset_seconds": NUMBER}))
_LIMITS: Final[dict[str, Schema]] = {
    "weight": NUMBER,
    "classes": nullable(array(one_of(*Priority))),
    "models": nullable(array(TEXT)),
    "rpm": nullable(COUNT),
    "tpm": nullable(COUNT),
    "concurrency": nullable(COUNT),
    "queued_jobs": nullable(COUNT),
    "queued_tokens": nullable(COUNT),
    "daily_tokens": nullable(COUNT),
    "max_tokens": nullable(COUNT),
    "deadline_seconds": nullable(NUMBER),
}
_TENANT: Final = {"tenant": TEXT, "has_own_limits": FLAG} | _LIMITS
_BROKEN: Final = {"unreadable": TEXT}
_KEY: Final = {"id": TEXT, "tenant": TEXT, "name": TEXT, "admin": FLAG, "created_ms": INTEGER}

TENANT_NAME: Final[Schema] = {"anyOf": [TEXT | {"pattern": TENANT_PATTERN}, {"const": "*"}]}

ADMIN_SCHEMAS: Final[dict[str, Schema]] = {
    "Tenant": tagged("tenant", _TENANT, _BROKEN),
    "TenantStanding": tagged(
        "tenant",
        _TENANT
        | {
            "usage": obj(
                {
                    "in_flight": COUNT,
                    "waiting_jobs": COUNT,
                    "waiting_tokens": COUNT,
                    "held_tokens": COUNT,
                    "spent_tokens_today": COUNT,
                    "requests": _RATE,
                    "tokens": _RATE,
                }
            )
        },
        _BROKEN,
    ),
    "TenantList": listed(at("Tenant")),
    "TenantDeleted": tagged("tenant", {"tenant": TEXT, "deleted": {"const": True}}),
    "Key": tagged("key", _KEY),
    "NewKey": tagged("key", _KEY | {"key": TEXT}),
    "KeyList": listed({"anyOf": [at("Key"), tagged("key", {"id": TEXT, "unreadable": TEXT})]}),
    "KeyDeleted": tagged("key", {"id": TEXT, "deleted": {"const": True}}),
    "DayUsage": page(
        obj(
            {
                "id": TEXT,
                "day": TEXT | {"format": "date"},
                "tenant": TEXT,
                "model": TEXT,
                "jobs": COUNT,
                "prompt_tokens": COUNT,
                "completion_tokens": COUNT,
                "total_tokens": COUNT,
            }
        ),
        {"from": TEXT | {"format": "date"}, "to": TEXT | {"format": "date"}},
    ),
    "Alive": obj({"status": TEXT}),
    "Health": obj(
        {
            "status": one_of("ok", "hung"),
            "queue": one_of("ok", "unreachable"),
            "hung_workers": array(obj({"id": TEXT, "model": TEXT, "step_age_seconds": NUMBER})),
        }
    ),
    "Readiness": obj({"ready": FLAG, "reason": nullable(TEXT), "ready_workers": COUNT}),
    "Index": obj(
        {
            "name": TEXT,
            "version": TEXT,
            "console": TEXT,
            "open_mode": nullable(FLAG),
            "endpoints": {"type": "object", "additionalProperties": TEXT},
        }
    ),
    "Error": obj(
        {
            "error": obj(
                {
                    "message": TEXT | {"minLength": 1},
                    "type": one_of("invalid_request_error", "requests", "tokens", "server_error"),
                    "param": nullable(TEXT),
                    "code": TEXT | {"minLength": 1},
                }
            )
        }
    ),
}


def limits_body(*, names_tenant: bool) -> Schema:
    """The body that sets a tenant's limits; null takes one away."""
    fields: dict[str, dict[str, Any]] = self_contained(TenantLimits)["properties"]
    properties: dict[str, Any] = {name: _or_null(field) for name, field in fields.items()}
    if names_tenant:
        properties["tenant"] = TENANT_NAME
    return {
        "type": "object",
        "properties": properties,
        "required": ["tenant"] if names_tenant else [],
        "additionalProperties": False,
    }


def _or_null(field: dict[str, Any]) -> Schema:
    schema = {name: value for name, value in field.items() if name not in {"default", "title"}}
    return schema if "anyOf" in schema else nullable(schema)


KEY_BODY: Final[Schema] = {
    "type": "object",
    "properties": {
        "tenant": TEXT | {"pattern": TENANT_PATTERN},
        "name": TEXT | {"maxLength": 200},
        "admin": FLAG,
    },
    "required": ["tenant"],
    "additionalProperties": False,
}
USAGE_QUERY: Final = {
    "from": TEXT | {"format": "date"},
    "to": TEXT | {"format": "date"},
    "tenant": TEXT,
    "model": TEXT | {"pattern": MODEL_PATTERN, "maxLength": 128},
    "limit": COUNT | {"minimum": 1, "maximum": 10_000},
    "after": TEXT,
}
