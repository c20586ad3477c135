"""The form that an answer must have: OpenAI's ``response_format``, and the names that vLLM's users know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, Self

import orjson
from pydantic import Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from headway.gateway.errors import invalid_request
from headway.gateway.request_shape import BOUNDED, Shape, bounded
from headway.gateway.tool_requests import NAME_PATTERN
from headway.gateway.validation import refusal
from headway.queueing.messages import Constraint

ANY_OBJECT: Final[Mapping[str, Any]] = {"type": "object"}


class JsonSchemaFormat(Shape):
    """A named JSON Schema; the answer keeps to it whether ``strict`` is asked for or not."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    description: str | None = None
    schema_: Annotated[dict[str, Any] | bool, Field(alias="schema"), BOUNDED]
    strict: bool | None = None


class ResponseFormat(Shape):
    """``response_format`` of chat; completions take it too."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    @model_validator(mode="after")
    def _schema_belongs(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise PydanticCustomError(
                "json_schema", '\'json_schema\' and "type": "json_schema" belong together'
            )
        return self


class StructuredOutputs(Shape):
    """vLLM's field; exactly one of its members."""

    json_: Annotated[dict[str, Any] | bool | str | None, Field(alias="json"), BOUNDED] = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None

    def given(self) -> dict[str, Any]:
        """What is asked for, under the contract's names."""
        asked = {
            "json_schema": self.json_,
            "regex": self.regex,
            "choice": self.choice,
            "grammar": self.grammar,
        }
        found = {name: value for name, value in asked.items() if value is not None}
        return found | {"json_schema": ANY_OBJECT} if self.json_object and self.json_ is None else found


class StructuredRequest(Shape):
    """The fields of a request that bind the form of its answer."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    # vLLM's older names.
    guided_json: Annotated[dict[str, Any] | str | None, BOUNDED] = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    def constraint(self) -> tuple[Constraint | None, str | None]:
        """The form asked for, and the field that asks for it; raises ApiError 400."""
        asked = [*self._formats(), *self._structured(), *self._guided()]
        if not asked:
            return None, None
        if len(asked) > 1:
            names = " and ".join(f"'{param}'" for param, _, _ in asked)
            raise invalid_request(f"{names} both bind the answer: give one of them", param=asked[1][0])
        param, form, value = asked[0]
        return _constraint(param, form, value), param

    def _formats(self) -> list[tuple[str, str, Any]]:
        if self.response_format is None or self.response_format.type == "text":
            return []
        asked = self.response_format.json_schema
        if asked is None:
            return [("response_format", "json_schema", ANY_OBJECT)]
        return [("response_format.json_schema.schema", "json_schema", asked.schema_)]

    def _structured(self) -> list[tuple[str, str, Any]]:
        if self.structured_outputs is None:
            return []
        given = self.structured_outputs.given()
        if not given:
            raise invalid_request(
                "give one of json, json_object, regex, choice, grammar", param="structured_outputs"
            )
        return [
            (f"structured_outputs.{name.removesuffix('_schema')}", name, value)
            for name, value in given.items()
        ]

    def _guided(self) -> list[tuple[str, str, Any]]:
        asked = {
            "json_schema": ("guided_json", self.guided_json),
            "regex": ("guided_regex", self.guided_regex),
            "choice": ("guided_choice", self.guided_choice),
            "grammar": ("guided_grammar", self.guided_grammar),
        }
        return [(param, form, value) for form, (param, value) in asked.items() if value is not None]


def _constraint(param: str, form: str, value: Any) -> Constraint:
    if form == "json_schema" and isinstance(value, str):
        value = _parsed(param, value)
    try:
        return Constraint.model_validate({form: value})
    except ValidationError as error:
        raise refusal(error, {form: param}) from None


def _parsed(param: str, text: str) -> object:
    """vLLM takes a schema as its JSON text as well."""
    try:
        parsed: object = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise invalid_request(f"the schema is not valid JSON: {error}", param=param) from None
    try:
        return bounded(parsed)
    except ValueError as error:
        raise invalid_request(f"the schema cannot be read: {error}", param=param) from None
