"""Request bodies in ``/openapi.json``: handlers read them by themselves, so the framework is told here."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from headway.gateway.json_values import is_array, is_object


def json_body_of(model: type[BaseModel]) -> dict[str, Any]:
    """The operation's ``requestBody``, self-contained."""
    return json_body(self_contained(model))


def json_body(schema: dict[str, Any]) -> dict[str, Any]:
    """An operation's ``requestBody`` of this schema."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def self_contained(model: type[BaseModel]) -> dict[str, Any]:
    """The model's schema with its parts in place."""
    schema = model.model_json_schema()
    parts: dict[str, Any] = schema.pop("$defs", {})
    inlined: dict[str, Any] = _inlined(schema, parts)
    return inlined


def _inlined(node: object, parts: dict[str, Any]) -> Any:
    """The schema with its parts in place: operations cannot bring components of their own."""
    if is_array(node):
        return [_inlined(item, parts) for item in node]
    if not is_object(node):
        return node
    reference = node.get("$ref")
    if isinstance(reference, str):
        return _inlined(parts[reference.rpartition("/")[2]], parts)
    return {name: _inlined(item, parts) for name, item in node.items()}
