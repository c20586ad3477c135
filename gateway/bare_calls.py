"""Calls without a marker: the whole answer is one, or none of it is.

llama3_json   {"name": …, "parameters": {…}}, several with ";" between them
pythonic      [get_weather(city="Paris"), get_time(zone="CET")]
forced        what a constraint made: a list of calls, or the arguments of the one function asked for
"""

from __future__ import annotations

import ast
import re
from typing import Final

import orjson

from headway.gateway.answer_parts import CallArgued, CallBegun, Part, Said
from headway.gateway.json_calls import JsonCalls
from headway.gateway.marked_calls import Calls, MarkedCalls

_CALL_HEAD: Final = re.compile(r"[\[,\s]*([A-Za-z_][\w.\-]*)?\s*(\()?")
_LITERAL_NAMES: Final = {"true": True, "false": False, "null": None}


class BareCalls:
    """An answer that begins with ``opening`` is read as calls; any other is words, with markers in them."""

    def __init__(self, opening: str, calls: Calls, words: MarkedCalls) -> None:
        self._opening = opening
        self._calls: Calls | None = calls
        self._words = words
        self._space = ""
        self._is_decided = False

    def feed(self, text: str) -> list[Part]:
        """The parts that this text completes."""
        if not self._is_decided:
            self._space += text
            first = self._space.lstrip()[:1]
            if not first:
                return []
            self._is_decided = True
            text = self._space
            self._calls = self._calls if first == self._opening else None
        if self._calls is None:
            return self._words.feed(text)
        parts, rest = self._calls.feed(text)
        if self._calls.is_over:
            self._words.next_call = self._calls.next_call
            self._calls = None
            parts += self._words.feed(rest)
        return parts

    def close(self) -> list[Part]:
        """The text has ended: what was held back."""
        if not self._is_decided:
            return [Said(self._space)] if self._space else []
        return self._words.close() if self._calls is None else self._calls.close()


def json_calls(names: frozenset[str]) -> JsonCalls:
    """Calls of these functions as JSON; other JSON is words as soon as it shows."""
    return JsonCalls(0, "", names=names)


class PythonCalls:
    """A list of Python calls with literal keyword arguments; each goes out when it is complete."""

    def __init__(self, names: frozenset[str]) -> None:
        self.is_over = False
        self.next_call = 0
        self._names = names
        self._held = ""
        self._arguments: _Arguments | None = None

    def feed(self, text: str) -> tuple[list[Part], str]:
        """The parts in this text, and what it leaves once the calls are over."""
        self._held += text
        parts: list[Part] = []
        while not self.is_over and self._next(parts):
            pass
        return parts, self._held if self.is_over else ""

    def close(self) -> list[Part]:
        """The text has ended: a call that was cut has no arguments that could be read, so it is words."""
        return [Said(self._held)] if self._held.strip(", \t\r\n]") else []

    def _next(self, parts: list[Part]) -> bool:
        """Read one call; False: more text is needed, or the list is over."""
        if self._arguments is None and not self._find_call():
            return False
        arguments = self._arguments
        if arguments is None or not arguments.find_end(self._held):
            return False
        found = _as_json(self._held[arguments.start : arguments.at - 1])
        if found is None:
            self.is_over = True
            return False
        parts += [CallBegun(self.next_call, arguments.name), CallArgued(self.next_call, found)]
        self.next_call += 1
        self._held = self._held[arguments.at :]
        self._arguments = None
        return True

    def _find_call(self) -> bool:
        ending = self._held.lstrip(", \t\r\n")
        if self.next_call and ending.startswith("]"):
            self._held = ending[1:]
            self.is_over = True
            return False
        head = _CALL_HEAD.match(self._held)
        name = head[1] if head else None
        if head is not None and head[2] and name in self._names:
            self._arguments = _Arguments(name or "", head.end())
            return True
        # Half a name may still become one of ours.
        is_half = head is not None and head.end() == len(self._held) and not head[2]
        self.is_over = not is_half or not any(known.startswith(name or "") for known in self._names)
        return False


class _Arguments:
    """Looks for the bracket that closes a call; goes on where it stopped."""

    def __init__(self, name: str, start: int) -> None:
        self.name = name
        self.start = self.at = start
        """``at``: how far the text has been read; once the end is found, right behind the bracket."""
        self._depth = 1
        self._quote = ""
        self._is_escaped = False

    def find_end(self, text: str) -> bool:
        while self.at < len(text) and self._depth:
            self._see(text[self.at])
            self.at += 1
        return not self._depth

    def _see(self, character: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif self._quote:
            self._is_escaped = character == "\\"
            self._quote = "" if character == self._quote else self._quote
        elif character in "\"'":
            self._quote = character
        elif character in "([{":
            self._depth += 1
        elif character in ")]}":
            self._depth -= 1


def _as_json(source: str) -> str | None:
    """Keyword arguments as a JSON object; None for anything but literals."""
    try:
        call = _JsonNames().visit(ast.parse(f"f({source}\n)", mode="eval").body)
        if not isinstance(call, ast.Call) or call.args:
            return None
        found = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg}
        return orjson.dumps(found).decode() if len(found) == len(call.keywords) else None
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


class _JsonNames(ast.NodeTransformer):
    """Models write JSON's names among Python's."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """The value that the name stands for, where it is one of JSON's."""
        if node.id in _LITERAL_NAMES:
            return ast.copy_location(ast.Constant(_LITERAL_NAMES[node.id]), node)
        return node


class NamedCall:
    """An answer that a constraint made the arguments of one function."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._has_begun = False

    def feed(self, text: str) -> list[Part]:
        """The parts in this text."""
        begun: list[Part] = [] if self._has_begun else [CallBegun(0, self._name)]
        self._has_begun = True
        return [*begun, CallArgued(0, text)]

    def close(self) -> list[Part]:
        """Nothing is held back."""
        return []
