"""Request bodies in ``/openapi.json``: handlers read them by themselves, so the framework is told here."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import orjson
from pydantic import BaseModel

from headway.gateway.json_values import is_array, is_object
from headway.queueing.messages import Job, SamplingParams

_OF_SAMPLING: Final = {
    "temperature": "temperature",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
    "n": "n",
    "logit_bias": "logit_bias",
    "stop_token_ids": "stop_token_ids",
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "min_tokens": "min_tokens",
    "top_logprobs": "logprobs",
}
"""Our names of the contract's fields whose ranges hold."""
_OF_JOBS: Final = ("model", "metadata", "tenant", "deadline_seconds", "objective")
_NO_RANGE: Final = frozenset({"title", "default", "description"})


def json_body_of(model: type[BaseModel]) -> dict[str, Any]:
    """The operation's ``requestBody``, self-contained, with the ranges that the job contract sets."""
    return json_body(orjson.loads(_body_of(model)))


@cache
def _body_of(model: type[BaseModel]) -> bytes:
    """As JSON: made once, it is four fifths of what a gateway takes to be put together."""
    schema = self_contained(model)
    if model is not Job:
        _set_ranges(schema["properties"])
    return orjson.dumps(schema)


def json_body(schema: dict[str, Any]) -> dict[str, Any]:
    """An operation's ``requestBody`` of this schema."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def self_contained(model: type[BaseModel]) -> dict[str, Any]:
    """The model's schema with its parts in place."""
    schema = model.model_json_schema()
    parts: dict[str, Any] = schema.pop("$defs", {})
    inlined: dict[str, Any] = _inlined(schema, parts)
    return inlined


def _set_ranges(fields: dict[str, Any]) -> None:
    sampling: dict[str, Any] = self_contained(SamplingParams)["properties"]
    job: dict[str, Any] = self_contained(Job)["properties"]
    ranged = {name: sampling[of] for name, of in _OF_SAMPLING.items()} | {
        name: job[name] for name in _OF_JOBS
    }
    for name in ranged.keys() & fields.keys():
        schema = {key: value for key, value in ranged[name].items() if key not in _NO_RANGE}
        if name == "logit_bias":
            schema["propertyNames"] = {"pattern": "^[0-9]{1,9}$"}
        is_optional = "anyOf" not in schema and name != "model"
        fields[name] = {"anyOf": [schema, {"type": "null"}]} if is_optional else schema


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
