"""How deep JSON of any shape may be nested: no deeper than everybody who reads it on its way can follow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pydantic import AfterValidator

MOST_LEVELS: Final = 120
"""The grammar library reads 128, a job's own parser some 200; Python's stack ends a little behind that."""


def check_nesting(value: Any, most: int = MOST_LEVELS) -> Any:
    """The value; raises ValueError for one with more levels of objects and lists."""
    level = [value]
    for _ in range(most):
        level = [
            inner for outer in level for inner in _inner(outer) if isinstance(inner, dict | list | tuple)
        ]
        if not level:
            return value
    raise ValueError(f"it is nested deeper than {most} levels: make it flatter")


def _inner(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        named: dict[Any, Any] = value
        return iter(named.values())
    listed: list[Any] | tuple[Any, ...] = value if isinstance(value, list | tuple) else ()
    return iter(listed)


BOUNDED: Final = AfterValidator(check_nesting)
"""For fields whose shape somebody else knows."""
