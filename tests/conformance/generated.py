"""Calls that schemathesis generates from ``/openapi.json``, what they find, and how many they were."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx

MODEL_TOKENS: Final = 8
"""Longest answer, by a limit of the tenant."""

EXCLUDING: Final = frozenset(
    {
        *("guided_choice", "guided_grammar", "guided_json", "guided_regex", "structured_outputs"),
        *("response_format", "text", "constraint", "tools", "tool_choice", "chat_template_kwargs", "task"),
        *("prompt_token_ids", "previous_response_id", "include", "top_logprobs", "stream_options", "store"),
        *("min_tokens", "best_of", "echo", "demotable", "add_special_tokens", "notes"),
        *("expires_after[anchor]", "expires_after[seconds]", "idempotency_key", "traceparent"),
    }
)
"""Fields that go only beside others or with some of their values; so do headers that repeat a field."""

CONFIG: Final = """
hooks = "{hooks}"
request-timeout = 30.0

# Two fields may exclude each other, and a model may not be served: a schema cannot say that. And 1.0 is an
# integer to JSON Schema, but not to us.
[checks.positive_data_acceptance]
enabled = false

# /readyz says with its status that there are not as many workers as were asked for.
[[operations]]
include-path = "/readyz"
checks.not_a_server_error.expected-statuses = ["2xx", "4xx", "503"]

# A tenant without limits of its own is one as well: it has everyone's.
[[operations]]
include-path = "/admin/tenants/{{tenant}}"
checks.use_after_free.enabled = false
"""


@dataclass(frozen=True, slots=True)
class Target:
    """A service, and whose keys to come with."""

    url: str
    model: str
    key: str
    operator: str


@dataclass(frozen=True, slots=True)
class Round:
    """One run of schemathesis. ``examples``: at most so many calls of each operation and phase."""

    seed: int
    phases: str
    examples: int
    is_admin: bool = False
    is_accepted: bool = False
    """Mostly calls that go through: what a schema cannot rule out is left out, so that more is reached."""


@dataclass(slots=True)
class Outcome:
    """What came of one or several rounds."""

    calls: int = 0
    statuses: Counter[str] = field(default_factory=Counter[str])
    """By operation and status."""
    reports: list[str] = field(default_factory=list[str])
    """What schemathesis said of rounds that found something."""

    def add(self, other: Outcome) -> None:
        """Count the other's calls as well."""
        self.calls += other.calls
        self.statuses += other.statuses
        self.reports += other.reports

    def by_class(self) -> dict[str, int]:
        """How many answers of each class of statuses."""
        classes: Counter[str] = Counter()
        for name, count in self.statuses.items():
            classes[f"{name.rpartition(' ')[2][0]}xx"] += count
        return dict(sorted(classes.items()))


def run_round(target: Target, asked: Round, folder: Path) -> Outcome:
    """Run schemathesis in a process of its own; its files lie in ``folder``."""
    document, config = folder / "openapi.json", folder / "schemathesis.toml"
    report, counts = folder / "report.json", folder / "counts.json"
    narrow = narrowed(target)
    if asked.is_accepted:
        leave_out_what_excludes(narrow)
    document.write_text(json.dumps(narrow), encoding="utf-8")
    config.write_text(CONFIG.format(hooks=Path(__file__).with_name("checks.py")), encoding="utf-8")
    key = target.operator if asked.is_admin else target.key
    group = "--include-path-regex" if asked.is_admin else "--exclude-path-regex"
    command = [sys.executable, "-m", "schemathesis.cli", "--no-color", "--config-file", str(config)]
    command += ["run", str(document), "--url", target.url, "-H", f"Authorization: Bearer {key}"]
    command += ["--seed", str(asked.seed), "--phases", asked.phases, "--max-examples", str(asked.examples)]
    command += ["--mode", "positive" if asked.is_accepted else "all"]
    command += [group, "^/admin", "--no-shrink", "--generation-database", "none"]
    command += ["--continue-on-failure", "--report-json-path", str(report)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if not report.exists() or not counts.exists():
        raise RuntimeError(f"schemathesis did not run: {done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    statuses: Counter[str] = Counter(json.loads(counts.read_text(encoding="utf-8")))
    outcome = Outcome(found["test_cases"]["generated"], statuses)
    if done.returncode != 0 or found["failures"] or found["errors"]:
        outcome.reports.append(f"seed {asked.seed}, {asked.phases}:\n{done.stdout}\n{done.stderr}")
    return outcome


def narrowed(target: Target) -> dict[str, Any]:
    """The service's document, narrowed to what leads somewhere, and its answers closed.

    The model is one that is served, nothing has a deadline (one of a microsecond is a 504, and rightly so), a
    key is asked for; and an answer with a member that the document does not name is a finding.
    """
    document: dict[str, Any] = httpx.get(f"{target.url}/openapi.json", timeout=10).raise_for_status().json()
    for operation in _operations(document):
        if {} in operation["security"]:
            operation["security"].remove({})
        operation["parameters"] = [each for each in operation["parameters"] if each["name"] != "X-Deadline"]
        for content in operation.get("requestBody", {}).get("content", {}).values():
            if "model" in content["schema"].get("properties", {}):
                content["schema"]["properties"]["model"] = {"enum": [target.model]}
                content["schema"]["properties"].pop("deadline_seconds", None)
    _close(document["components"]["schemas"])
    return document


def leave_out_what_excludes(document: dict[str, Any]) -> None:
    """Take away fields and headers that ask for others, or go only with some of their values."""
    words = {"type": "string", "minLength": 1, "maxLength": 200}
    turn = {"role": {"enum": ["system", "user"]}, "content": words}
    own = {
        "messages": {"type": "array", "minItems": 1, "maxItems": 4, "items": _whole(turn)},
        "prompt": words,
        "input": words,
        "tokens": {
            "type": "array",
            "minItems": 1,
            "items": {"type": "integer", "minimum": 0, "maximum": 255},
        },
    }
    for operation in _operations(document):
        operation["parameters"] = [
            each for each in operation["parameters"] if each["in"] != "header" and each["name"] != "after"
        ]
        for content in operation.get("requestBody", {}).get("content", {}).values():
            schema, fields = content["schema"], content["schema"]["properties"]
            for name in EXCLUDING & fields.keys():
                del fields[name]
            if "max_completion_tokens" in fields:
                fields.pop("max_tokens", None)
            if "messages" in fields and "prompt" in fields:
                del fields["messages"]
            fields |= {name: form for name, form in own.items() if name in fields}
            schema["required"] = sorted({*schema["required"], *(own.keys() & fields.keys())})
            fields.get("sampling", {}).get("properties", {}).pop("min_tokens", None)


def _whole(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }


def _operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path, ways in document["paths"].items():
        if not path.startswith("/admin"):
            yield from ways.values()


def _close(node: Any) -> None:
    if isinstance(node, dict):
        if "properties" in node:
            node.setdefault("additionalProperties", False)
        for value in node.values():
            _close(value)
    elif isinstance(node, list):
        for value in node:
            _close(value)
