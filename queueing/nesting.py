"""How deep JSON of any shape may be nested: no deeper than everybody who reads it on its way can follow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeGuard

from pydantic import AfterValidator

MOST_LEVELS: Final = 120
"""The grammar library reads 128, a job's own parser some 200; Python's stack ends a little behind that."""


def check_nesting(value: Any, most: int = MOST_LEVELS) -> Any:
    """The value; raises ValueError for one with more levels of objects and lists."""
    level: list[object] = [value]
    for _ in range(most):
        level = [
            inner for outer in level for inner in _inner(outer) if isinstance(inner, dict | list | tuple)
        ]
        if not level:
            return value
    raise ValueError(f"it is nested deeper than {most} levels: make it flatter")


def _inner(value: object) -> Iterable[object]:
    if _is_object(value):
        return value.values()
    return value if _is_list(value) else ()


def _is_object(value: object) -> TypeGuard[Mapping[object, object]]:
    return isinstance(value, dict)


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, list | tuple)


BOUNDED: Final = AfterValidator(check_nesting)
"""For fields whose shape somebody else knows."""
