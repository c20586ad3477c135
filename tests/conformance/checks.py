"""What schemathesis does not look at by itself; it loads this file (``hooks``) into its own process.

Counts every answer, and holds each event of a stream to the schema that the document has for its data.
"""

from __future__ import annotations

import atexit
import json
from collections import Counter
from pathlib import Path
from typing import Any, Final

import schemathesis
from jsonschema import Draft202012Validator
from schemathesis.core.failures import Failure

COUNTS: Final = Path("counts.json").absolute()
"""Written at the end, where schemathesis was started: how many answers by operation and status."""
_counts: Counter[str] = Counter()
AnyCase = schemathesis.Case[Any]
_validators: dict[str, Draft202012Validator] = {}


@schemathesis.check
def events_conform(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: AnyCase
) -> bool | None:
    _counts[f"{case.operation.label} {response.status_code}"] += 1
    kind = (response.headers.get("content-type") or [""])[0]
    if not kind.startswith("text/event-stream"):
        return None
    for line in response.content.decode().split("\n"):
        if line.startswith("data: ") and line != "data: [DONE]":
            _hold(case, json.loads(line.removeprefix("data: ")))
    return None


def _hold(case: AnyCase, content: object) -> None:
    wrong = next(_validator(case).iter_errors(content), None)
    if wrong is not None:
        raise Failure(
            operation=case.operation.label,
            title="An event does not keep to its schema",
            message=f"{wrong.message}\n\nin {json.dumps(content)[:2000]}",
        )


def _validator(case: AnyCase) -> Draft202012Validator:
    label = case.operation.label
    if label not in _validators:
        document: dict[str, Any] = case.operation.schema.raw_schema
        method, _, path = label.partition(" ")
        answer = document["paths"][path][method.lower()]["responses"]["200"]
        content = answer["content"]["text/event-stream"]["schema"]["properties"]["data"]
        schema = content.get("anyOf", [content])[-1]["contentSchema"]
        _validators[label] = Draft202012Validator(schema | {"components": document["components"]})
    return _validators[label]


@atexit.register
def _write_counts() -> None:
    COUNTS.write_text(json.dumps(_counts), encoding="utf-8")
