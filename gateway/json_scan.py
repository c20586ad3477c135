"""One JSON value, or one call written as a JSON object, read while it arrives."""

from __future__ import annotations

import re
from enum import Enum, auto
from typing import Final

import orjson

_STRING_RUN: Final = re.compile(r'[^"\\]*')
_NESTED_RUN: Final = re.compile(r'[^"{}\[\]]*')
_SCALAR_RUN: Final = re.compile(r"[^,}\]\s]*")
_SPACE_RUN: Final = re.compile(r"\s*")

NAME_KEYS: Final = frozenset({"name"})
ARGUMENT_KEYS: Final = frozenset({"arguments", "parameters"})
OTHER_KEYS: Final = frozenset({"type", "id", "function"})
MAX_NAME_CHARS: Final = 64
"""The job contract's limit for the name of a function; anything longer is no call."""


def skip_space(text: str, start: int) -> int:
    """The first position from ``start`` on that is no white space."""
    found = _SPACE_RUN.match(text, start)
    return found.end() if found else start


class JsonValue:
    """Finds where a JSON value ends that is fed in pieces; what is inside brackets is not checked."""

    def __init__(self) -> None:
        self.is_done = False
        self.is_string = False
        self.is_nested = False
        self._is_scalar = False
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self._has_begun = False

    def feed(self, text: str, start: int) -> int:
        """Where this text stops to belong to the value; all of it, while the value goes on."""
        at = start
        if not self._has_begun and at < len(text):
            at = self._begin(text, at)
        while at < len(text) and not self.is_done:
            if self._in_string:
                at = self._string(text, at)
            elif self._is_scalar:
                at = _run(_SCALAR_RUN, text, at)
                self.is_done = at < len(text)
            else:
                at = self._nested(text, at)
        return at

    def _begin(self, text: str, at: int) -> int:
        self._has_begun = True
        first = text[at]
        if first == '"':
            self.is_string = self._in_string = True
            return at + 1
        if first in "{[":
            self.is_nested = True
            self._depth = 1
            return at + 1
        self._is_scalar = True
        return at

    def _string(self, text: str, at: int) -> int:
        if self._is_escaped:
            self._is_escaped = False
            return at + 1
        at = _run(_STRING_RUN, text, at)
        if at == len(text):
            return at
        if text[at] == "\\":
            self._is_escaped = True
        else:
            self._in_string = False
            self.is_done = self._depth == 0
        return at + 1

    def _nested(self, text: str, at: int) -> int:
        at = _run(_NESTED_RUN, text, at)
        if at == len(text):
            return at
        match text[at]:
            case '"':
                self._in_string = True
            case "{" | "[":
                self._depth += 1
            case _:
                self._depth -= 1
                self.is_done = self._depth == 0
        return at + 1


class _At(Enum):
    OPENING = auto()
    KEY = auto()
    IN_KEY = auto()
    COLON = auto()
    VALUE = auto()
    END = auto()


class CallObject:
    """One call as ``{"name": …, "arguments": {…}}``, with its keys in any order.

    ``name`` is known once its value is complete, and ``take_arguments`` gives what has come of the arguments
    since the last call of it. ``is_bad`` is set as soon as the text can be no call: with ``names`` also by a
    name that is not among them or by a foreign key, so that other JSON is not mistaken for a call.
    """

    def __init__(self, names: frozenset[str] | None = None) -> None:
        self.name: str | None = None
        self.is_done = False
        self.is_bad = False
        self._names = names
        self._at = _At.OPENING
        self._value = JsonValue()
        self._key = ""
        self._raw: list[str] = []
        self._arguments: list[str] = []
        self._has_arguments = False

    def feed(self, text: str, start: int) -> int:
        """Read on from ``start``; returns where the call ended, or turned out to be none."""
        at = start
        while at < len(text) and not self.is_done and not self.is_bad:
            if self._at in {_At.IN_KEY, _At.VALUE}:
                at = self._read_value(text, at)
                continue
            at = skip_space(text, at)
            if at < len(text):
                at = self._read_mark(text, at)
        return at

    def take_arguments(self) -> str:
        """The arguments' JSON text since the last time; an absent object is an empty one."""
        if self.is_done and not self._has_arguments:
            self._has_arguments = True
            return "{}"
        taken = "".join(self._arguments)
        self._arguments.clear()
        return taken

    def _read_mark(self, text: str, at: int) -> int:
        mark = text[at]
        match self._at, mark:
            case (_At.OPENING, "{"):
                self._at = _At.KEY
            case (_At.KEY, '"'):
                self._begin(_At.IN_KEY)
                return at
            case (_At.KEY | _At.END, "}"):
                self.is_done = self.name is not None
                self.is_bad = self.name is None
            case (_At.END, ","):
                self._at = _At.KEY
            case (_At.COLON, ":"):
                self._at = _At.VALUE
                return skip_space(text, at + 1)
            case (_, _):
                self.is_bad = True
                return at
        return at + 1

    def _begin(self, at: _At) -> None:
        self._at = at
        self._value = JsonValue()
        self._raw = []

    def _read_value(self, text: str, start: int) -> int:
        if self._at is _At.VALUE and not self._raw:
            start = skip_space(text, start)  # the colon came at the very end of a piece
            if start == len(text):
                return start
        end = self._value.feed(text, start)
        piece = text[start:end]
        self._raw.append(piece)
        if self._streams_arguments:
            self._has_arguments = True
            self._arguments.append(piece)
        if self._value.is_done:
            self._complete("".join(self._raw))
        return end

    @property
    def _streams_arguments(self) -> bool:
        # A text as arguments is JSON inside JSON: it can be read only when it is whole.
        return self._at is _At.VALUE and self._key in ARGUMENT_KEYS and self._value.is_nested

    def _complete(self, raw: str) -> None:
        try:
            value: object = orjson.loads(raw) if self._needs_reading else None
        except orjson.JSONDecodeError:
            self.is_bad = True
            return
        if self._at is _At.IN_KEY:
            self._take_key(value)
            return
        if self._key in NAME_KEYS:
            self._take_name(value)
        elif self._key in ARGUMENT_KEYS and isinstance(value, str):
            self._has_arguments = True
            self._arguments.append(value)
        elif self._key == "function":
            self._take_function(value)
        self._at = _At.END

    @property
    def _needs_reading(self) -> bool:
        return self._at is _At.IN_KEY or self._value.is_string or self._key in {*NAME_KEYS, "function"}

    def _take_key(self, key: object) -> None:
        self._key = key if isinstance(key, str) else ""
        known = self._key in NAME_KEYS or self._key in ARGUMENT_KEYS or self._key in OTHER_KEYS
        self.is_bad = self._names is not None and not known
        self._begin(_At.COLON)

    def _take_name(self, name: object) -> None:
        is_name = isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARS
        if not is_name or (self._names is not None and name not in self._names):
            self.is_bad = True
        elif isinstance(name, str):
            self.name = name

    def _take_function(self, function: object) -> None:
        """OpenAI's own form, ``{"type": "function", "function": {…}}``, or just the name."""
        if not isinstance(function, dict):
            self._take_name(function)
            return
        inner = CallObject(self._names)
        text = orjson.dumps(function).decode()
        inner.feed(text, 0)
        self.is_bad = inner.is_bad
        self.name = None if inner.is_bad else inner.name
        self._has_arguments = True
        self._arguments.append(inner.take_arguments())


def _run(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at
