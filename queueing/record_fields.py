"""Records that another version of the software wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any


def known_fields(of: type[Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Of a record's fields those that a dataclass has: what a newer version added is left out."""
    return {each.name: record[each.name] for each in fields(of) if each.name in record}
