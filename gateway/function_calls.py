"""Calls as Qwen3-Coder writes them: ``<function=name><parameter=key>value</parameter></function>``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import orjson

from headway.gateway.answer_parts import CallArgued, CallBegun, Part, Said

_BEGIN: Final = re.compile(r"\s*<function=([^<>\s]{1,64})>")
_PARAMETER: Final = re.compile(r"\s*<parameter=([^<>\s]{1,256})>(.*?)</parameter>", re.DOTALL)
_END: Final = re.compile(r"\s*</function>\s*(</tool_call>)?")
_VALUE_END: Final = "</parameter>"
_CLOSING: Final = "</function></tool_call>"


class FunctionCalls:
    """One call; its arguments go out value by value.

    A value is text. Whether it means a text or another JSON value says the parameter's type:
    ``texts`` holds, by function, the parameters that are texts.
    """

    def __init__(self, first_call: int, lead: str, texts: Mapping[str, frozenset[str]]) -> None:
        self.is_over = False
        self.next_call = first_call
        self._lead = lead
        self._texts = texts
        self._held = ""
        self._looked = 0
        self._name: str | None = None
        self._has_arguments = False

    def feed(self, text: str) -> tuple[list[Part], str]:
        """The parts in this text, and what it leaves once the call is over."""
        self._held += text
        parts: list[Part] = []
        name = self._name
        if name is None:
            begin = _BEGIN.match(self._held)
            if begin is None:
                return self._wait_for_name()
            name = self._name = str(begin[1])
            self._held = self._held[begin.end() :]
            parts.append(CallBegun(self.next_call, name))
        while self._has_value() and (parameter := _PARAMETER.match(self._held)) is not None:
            parts.append(CallArgued(self.next_call, self._argument(name, parameter[1], parameter[2])))
            self._held = self._held[parameter.end() :]
            self._looked = 0
        return self._look_for_end(parts)

    def close(self) -> list[Part]:
        """The text has ended: a call without its end stays without one, as JSON that was cut."""
        return [Said(self._lead + self._held)] if self._name is None else []

    def _has_value(self) -> bool:
        """Whether a value is complete; what was looked through once is not looked through again."""
        found = self._held.find(_VALUE_END, max(0, self._looked - len(_VALUE_END)))
        self._looked = len(self._held)
        return found >= 0

    def _wait_for_name(self) -> tuple[list[Part], str]:
        begun = self._held.lstrip()
        could_be = "<function=".startswith(begun[:10]) and ">" not in begun and len(begun) < 80
        if could_be:
            return [], ""
        self.is_over = True
        return [Said(self._lead)], self._held

    def _argument(self, name: str, key: str, value: str) -> str:
        value = value.removeprefix("\n").removesuffix("\n")
        opening = ", " if self._has_arguments else "{"
        self._has_arguments = True
        return f"{opening}{_json(key)}: {self._value(name, key, value)}"

    def _value(self, name: str, key: str, value: str) -> str:
        if key in self._texts.get(name, ()):
            return _json(value)
        try:
            return _json(orjson.loads(value))
        except (orjson.JSONDecodeError, orjson.JSONEncodeError):  # the latter: nested too deep to be written
            return _json({"True": True, "False": False, "None": None}.get(value.strip(), value))

    def _look_for_end(self, parts: list[Part]) -> tuple[list[Part], str]:
        end = _END.match(self._held)
        if end is None or (end[1] is None and _CLOSING.startswith("".join(self._held[:100].split()))):
            return parts, ""  # the rest of the mark may follow
        self.is_over = True
        parts.append(CallArgued(self.next_call, "}" if self._has_arguments else "{}"))
        self.next_call += 1
        return parts, self._held[end.end() :]


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
