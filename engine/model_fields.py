"""Typed access to configuration that came from a file, with errors that name the file and the key.

Standard library only; serves ``config.json`` and GGUF metadata alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

from headway.engine.errors import ModelError


class ModelFields:
    """Values by key; a JSON null counts as absent. A key without a default must be there."""

    def __init__(self, source: str, values: Mapping[str, object]) -> None:
        self._source = source
        self._values = values

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def has_key(self, key: str) -> bool:
        """Whether the key is written at all, be it as null."""
        return key in self._values

    def value(self, key: str) -> object:
        """Whatever is stored, None if absent."""
        return self._values.get(key)

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        """A whole number of at least ``minimum``."""
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.wrong(key, f"a whole number of at least {minimum}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number above zero: everything we read is a size, a factor or an epsilon."""
        value = self._required(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, "a number")
        if not math.isfinite(value) or value <= 0:
            raise self.wrong(key, "a number above zero")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self._required(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """A string."""
        value = self._required(key, default)
        if not isinstance(value, str):
            raise self.wrong(key, "a string")
        return value

    def nested(self, key: str) -> ModelFields:
        """The object under ``key``; an empty one if absent."""
        value = self._required(key, {})
        if not isinstance(value, dict):
            raise self.wrong(key, "an object")
        return ModelFields(f"{self._source}: {key}", cast(dict[str, object], value))

    def token_ids(self, key: str) -> frozenset[int]:
        """One id or a list of them; empty if absent."""
        value = self._values.get(key)
        listed = cast(list[object], value) if isinstance(value, list) else [] if value is None else [value]
        ids = [item for item in listed if isinstance(item, int) and item >= 0]
        if len(ids) != len(listed):
            raise self.wrong(key, "token ids")
        return frozenset(ids)

    def wrong(self, key: str, wanted: str) -> ModelError:
        """The error for a value that makes no sense."""
        shown = repr(self._values.get(key))[:80]
        return ModelError(
            f"{self._source}: {key} is {shown}, expected {wanted}; fetch the model's files again"
        )

    def unsupported(self, what: str, instead: str) -> ModelError:
        """The error for a feature that Headway does not have."""
        return ModelError(f"{self._source}: {what} is not supported; {instead}")

    def _required(self, key: str, default: object) -> object:
        value = self._values.get(key)
        if value is None:
            value = default
        if value is None:
            raise ModelError(f"{self._source}: {key} is missing; fetch the model's files again")
        return value
