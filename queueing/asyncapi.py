"""The wire protocol as AsyncAPI 3.0: ``python -m headway.queueing.asyncapi`` prints wire.asyncapi.json.

Seen from a producer with a Redis client of its own: what it sends, and what it reads and receives. Every
schema is made from the types that the code has.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import TypeAdapter

from headway.queueing.functions import VERSION
from headway.queueing.messages import Job
from headway.queueing.wire_forms import (
    Answer,
    DeadLetter,
    EndedJob,
    JobRecord,
    Settlement,
    TerminalEntry,
    TokenEntry,
    Told,
)
from headway.queueing.worker_card import WorkerCard

REFERENCE: Final = "#/components/schemas/{model}"


@dataclass(frozen=True, slots=True)
class Channel:
    """One kind of key, function or channel of Redis. ``forms``: the types of what goes through it."""

    name: str
    address: str
    action: Literal["send", "receive"]
    what: str
    forms: tuple[type, ...]


CHANNELS: Final = (
    Channel("jobs", "headway_submit {lane} {key}", "send", "FCALL headway_submit: a job's body.", (Job,)),
    Channel(
        "tokens",
        "o:{lane}:{key}",
        "receive",
        "XREAD: a job's tokens as they come, then one terminal entry. The ids `<tokens>-<part>` only grow.",
        (TokenEntry, TerminalEntry),
    ),
    Channel("answer", "r:{lane}:{key}", "receive", "GET: the whole answer, after the end.", (Answer,)),
    Channel("record", "j:{lane}:{key}", "receive", "HGETALL: where a job is in its life.", (JobRecord,)),
    Channel(
        "hints",
        "hint:{lane}",
        "receive",
        "SUBSCRIBE: keys of jobs with new entries, apart by spaces.",
        (str,),
    ),
    Channel("recent", "recent:{lane}", "receive", "XREVRANGE: what ended lately.", (EndedJob,)),
    Channel("deadLetters", "dlq:{lane}", "receive", "XREVRANGE: what was given up.", (DeadLetter,)),
    Channel(
        "settlements", "settle:{lane}", "receive", "XRANGE: ends to be settled with quotas.", (Settlement,)
    ),
    Channel("control", "ctl:{lane}:{worker}", "receive", "XREAD: a worker's cancelled jobs.", (Told,)),
    Channel("workers", "w:{fleet}:{worker}", "receive", "GET: a worker's card.", (WorkerCard,)),
)
PARAMETERS: Final = {
    "lane": "The lane in its braces, `{<model>:<shard>}`, as `{smollm2-135m:0}`; `/` of a model is `--`.",
    "key": "The job's name in its lane: 1 to 64 of `A-Z a-z 0-9 _ -`.",
    "worker": "A worker's id.",
    "fleet": "`{fleet}` in its braces.",
}


def document() -> dict[str, Any]:
    """The AsyncAPI document."""
    return {
        "asyncapi": "3.0.0",
        "id": "urn:headway:wire",
        "info": {
            "title": "Headway's wire protocol",
            "version": str(VERSION),  # the function library's
            "description": "Jobs, tokens and answers in Redis or Valkey, in words in docs/wire-protocol.md. "
            "Values of hashes and streams are texts; where one holds JSON, contentSchema describes it. "
            "Readers leave fields that they do not know.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {channel.name: _channel(channel) for channel in CHANNELS},
        "operations": {_operation_name(channel): _operation(channel) for channel in CHANNELS},
        "components": {"schemas": schemas()},
    }


def schemas() -> dict[str, Any]:
    """Every form by its name, in draft 2020-12."""
    forms = [form for channel in CHANNELS for form in channel.forms if form is not str]
    adapters: Any = [(form.__name__, "validation", TypeAdapter(form)) for form in forms]
    _, found = TypeAdapter.json_schemas(adapters, ref_template=REFERENCE)
    known: dict[str, Any] = found["$defs"]
    _as_kept(known["WorkerCard"])
    return {name: known[name] for name in sorted(known)}


def _as_kept(card: dict[str, Any]) -> None:
    """A card says how long it holds; how old it is, is counted from that when it is read."""
    del card["properties"]["heartbeat_age_seconds"]
    card["properties"]["ttl_ms"] = {"type": "integer"}
    card["required"] = sorted({*card["required"], "ttl_ms"})


def _channel(channel: Channel) -> dict[str, Any]:
    used = {
        name: {"description": text} for name, text in PARAMETERS.items() if f"{{{name}}}" in channel.address
    }
    return {
        "address": channel.address,
        "description": channel.what,
        "parameters": used,
        "messages": {_name(form): {"name": _name(form), "payload": _payload(form)} for form in channel.forms},
    }


def _operation_name(channel: Channel) -> str:
    return f"{channel.action}{channel.name[0].upper()}{channel.name[1:]}"


def _operation(channel: Channel) -> dict[str, Any]:
    at = f"#/channels/{channel.name}"
    messages = [{"$ref": f"{at}/messages/{_name(form)}"} for form in channel.forms]
    return {"action": channel.action, "channel": {"$ref": at}, "summary": channel.what, "messages": messages}


def _name(form: type) -> str:
    return "Keys" if form is str else form.__name__


def _payload(form: type) -> dict[str, Any]:
    return {"type": "string"} if form is str else {"$ref": REFERENCE.format(model=form.__name__)}


def text() -> str:
    """The document as it is committed."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(text(), end="")
