"""The few words in which the schemas of answers are written (JSON Schema 2020-12, as OpenAPI 3.1 has it)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Schema = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
INTEGER: Final[Schema] = {"type": "integer"}
NUMBER: Final[Schema] = {"type": "number"}
FLAG: Final[Schema] = {"type": "boolean"}
NULL: Final[Schema] = {"type": "null"}
ANY_OBJECT: Final[Schema] = {"type": "object", "additionalProperties": True}
METADATA: Final[Schema] = {"type": "object", "additionalProperties": TEXT}


def ref(name: str) -> Schema:
    """A schema of ``components/schemas``."""
    return {"$ref": f"#/components/schemas/{name}"}


def obj(required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object with these members."""
    return {
        "type": "object",
        "properties": dict(required) | dict(optional or {}),
        "required": list(required),
    }


def array(of: Schema) -> Schema:
    """A list."""
    return {"type": "array", "items": of}


def nullable(schema: Schema) -> Schema:
    """The schema, or null."""
    return {"anyOf": [schema, NULL]}


def one_of(*values: str) -> Schema:
    """One of these texts."""
    return {"type": "string", "enum": list(values)}


def const(value: str) -> Schema:
    """This text and no other."""
    return {"type": "string", "const": value}


def tagged(kind: str, required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None) -> Schema:
    """An object whose ``object`` member says what it is."""
    return obj({"object": const(kind)} | dict(required), optional)


def listed(of: Schema, more: Mapping[str, Schema] | None = None) -> Schema:
    """OpenAI's list."""
    return tagged("list", {"data": array(of)} | dict(more or {}))


def page(of: Schema, more: Mapping[str, Schema] | None = None) -> Schema:
    """OpenAI's page of a list, with the ids that the next one begins behind."""
    ends = {"first_id": nullable(TEXT), "last_id": nullable(TEXT), "has_more": FLAG}
    return listed(of, ends | dict(more or {}))


def events(data: Schema, *, last: str | None = None) -> Schema:
    """One server-sent event, whose ``data`` is JSON of this schema; ``last``: or this text, at the end."""
    content = TEXT | {"contentMediaType": "application/json", "contentSchema": data}
    either = content if last is None else {"anyOf": [const(last), content]}
    return obj({"data": either}, {"id": TEXT, "event": TEXT})
