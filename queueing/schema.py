"""The job contract as JSON Schema: ``python -m headway.queueing.schema`` prints job.schema.json."""

from __future__ import annotations

import json

from headway.queueing.messages import job_schema


def schema_text() -> str:
    """The text of job.schema.json, for producers in other languages."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **job_schema()}
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(schema_text(), end="")
