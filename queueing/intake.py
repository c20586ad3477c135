"""The cheap checks of a posted body, and what a queue reads from it without validating the rest.

RedisQueue does the same inside the server (lua/submit.lua), so that a producer with only a Redis client
meets them too. Everything else is checked by the worker, which dead-letters what it cannot run.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass
from typing import Any, Final, cast

import orjson

from headway.queueing.errors import InvalidJobError
from headway.queueing.messages import TENANT_PATTERN, Job, Priority, check_job_size

_TENANT = re.compile(TENANT_PATTERN.removesuffix("$") + r"\Z")
_MAX_DEADLINE_SECONDS: Final = 7 * 86_400
_SEED_LIMIT: Final = 2**63
_UNSAID_ANSWER_TOKENS: Final = 256
_MOST_ANSWER_TOKENS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Intake:
    """What the queue itself needs to know of a job."""

    tenant: str
    priority: Priority
    due_seconds: float
    """Its deadline, also where that is only a wish (``demotable``): its place among its tenant's; 0: none."""
    deadline_seconds: float
    """When the queue itself ends it; 0: never, also where it is a wish."""
    idempotency_key: str | None
    fingerprint: str
    """Equal for bodies that ask the same, whatever the order of their fields or the trace they belong to."""
    on_disconnect: str
    metadata: dict[str, str]
    choices: int
    answer_tokens: int
    """That each answer may have."""
    cost: int
    """Rough tokens that the job may take: bytes / 4, and what it may generate."""


def read_body(body: bytes, model: str) -> Intake:
    """Check a body's size, syntax and routing fields; raises InvalidJobError."""
    check_job_size(len(body))
    try:
        # The standard library's parser takes NaN and lone surrogates, as the server's does.
        fields: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidJobError(f"body: not valid JSON ({str(error)[:80]})", param="body") from None
    if not isinstance(fields, dict):
        raise InvalidJobError("body: must be a JSON object", param="body")
    given = {name: value for name, value in cast("dict[str, Any]", fields).items() if value is not None}
    if given.get("model") != model:
        raise InvalidJobError(f"model: must be {model!r}, the model of this lane", param="model")
    deadline_seconds = _deadline(given.get("deadline_seconds"))
    return Intake(
        tenant=_tenant(given.get("tenant", "default")),
        priority=_priority(given.get("priority", "standard")),
        due_seconds=deadline_seconds,
        deadline_seconds=0.0 if given.get("demotable") is True else deadline_seconds,
        idempotency_key=_idempotency_key(given.get("idempotency_key")),
        fingerprint=_fingerprint(given),
        on_disconnect="detach" if given.get("on_disconnect") == "detach" else "cancel",
        metadata=read_metadata(given.get("metadata")),
        choices=_choices(given.get("sampling")),
        answer_tokens=_longest_answer(given.get("sampling")),
        cost=_cost(len(body), given.get("sampling")),
    )


def fields_as_asked(job: Job, asked: Job) -> str:
    """The fields in which a job and the one that its producer posted differ, as the latter has them: JSON."""
    differ = {name for name in Job.model_fields if getattr(job, name) != getattr(asked, name)}
    theirs = asked.model_dump(mode="json", include=differ, exclude_defaults=True)
    return orjson.dumps(dict.fromkeys(differ) | theirs, option=orjson.OPT_NON_STR_KEYS).decode()


def read_metadata(value: object) -> dict[str, str]:
    """The string pairs of a metadata object; anything else in it is left out."""
    if not isinstance(value, dict):
        return {}
    pairs = cast("dict[object, object]", value).items()
    return {name: text for name, text in pairs if isinstance(name, str) and isinstance(text, str)}


def seed_of(body: bytes, drawn: int) -> int:
    """The producer's own seed if the body has one, else the one drawn at acceptance."""
    try:
        seed = orjson.loads(body)["sampling"]["seed"]
    except (orjson.JSONDecodeError, KeyError, TypeError, IndexError):
        return drawn
    fits = type(seed) is int and -_SEED_LIMIT <= seed < _SEED_LIMIT
    return seed if fits else drawn


def _tenant(value: object) -> str:
    if not isinstance(value, str) or _TENANT.match(value) is None:
        raise InvalidJobError("tenant: use 1 to 64 characters out of A-Z a-z 0-9 _ . @ -", param="tenant")
    return value


def _priority(value: object) -> Priority:
    try:
        return Priority(value)  # type: ignore[arg-type]  # any object may be tried; the wrong ones raise
    except ValueError:
        raise InvalidJobError("priority: must be interactive, standard or batch", param="priority") from None


def _deadline(value: object) -> float:
    if value is None:
        return 0.0
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value <= _MAX_DEADLINE_SECONDS
    ):
        raise InvalidJobError(
            f"deadline_seconds: must be a number above 0 and at most {_MAX_DEADLINE_SECONDS}",
            param="deadline_seconds",
        )
    return float(value)


def _idempotency_key(value: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not 0 < len(value.encode()) <= 255:
        raise InvalidJobError("idempotency_key: must be a text of 1 to 255 bytes", param="idempotency_key")
    return value


def _choices(sampling: object) -> int:
    wanted = cast("dict[str, object]", sampling).get("n") if isinstance(sampling, dict) else None
    return wanted if type(wanted) is int and 1 <= wanted <= 16 else 1


def _cost(body_bytes: int, sampling: object) -> int:
    return math.ceil(body_bytes / 4) + _longest_answer(sampling) * _choices(sampling)


def _longest_answer(sampling: object) -> int:
    longest = cast("dict[str, object]", sampling).get("max_tokens") if isinstance(sampling, dict) else None
    if isinstance(longest, bool) or not isinstance(longest, int | float) or not longest >= 0:
        longest = _UNSAID_ANSWER_TOKENS
    return math.ceil(min(longest, _MOST_ANSWER_TOKENS))


def _fingerprint(given: dict[str, Any]) -> str:
    asked = {name: value for name, value in given.items() if name != "traceparent"}
    return hashlib.sha1(json.dumps(asked, sort_keys=True).encode(), usedforsecurity=False).hexdigest()
