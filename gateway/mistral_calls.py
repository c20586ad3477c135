"""Mistral's calls: a JSON list, or a name and its arguments."""

from __future__ import annotations

import re
from typing import Final

from headway.gateway.answer_parts import CallArgued, CallBegun, Part, Said
from headway.gateway.json_calls import JsonCalls
from headway.gateway.json_scan import MAX_NAME_CHARS, JsonValue

ARGUMENTS_MARK: Final = "[ARGS]"
_HEAD: Final = re.compile(r"\s*([A-Za-z0-9_.\-]+)\s*(\[CALL_ID\]\s*\w*\s*)?(\[ARGS\])?\s*\Z")
_MOST_HEAD_CHARS: Final = MAX_NAME_CHARS + 64


class MistralCalls:
    """What follows ``[TOOL_CALLS]``: ``[{"name": …}, …]``, or ``name[ARGS]{…}``."""

    def __init__(self, first_call: int, lead: str) -> None:
        self.is_over = False
        self.next_call = first_call
        self._lead = lead
        self._head = ""
        self._list: JsonCalls | None = None
        self._arguments: JsonValue | None = None

    def feed(self, text: str) -> tuple[list[Part], str]:
        """The parts in this text, and what it leaves once the calls are over."""
        if self._list is None and self._arguments is None:
            return self._decide(text)
        return self._go_on(text)

    def close(self) -> list[Part]:
        """The text has ended: what was held back."""
        if self._list is not None:
            return self._list.close()
        return [Said(self._lead + self._head)] if self._arguments is None else []

    def _decide(self, text: str) -> tuple[list[Part], str]:
        self._head += text
        head = self._head.lstrip()
        if head[:1] in {"[", "{"}:
            self._list = JsonCalls(self.next_call, self._lead)
            return self._go_on(self._head)
        brace = self._head.find("{")
        if brace < 0:
            if len(head) <= _MOST_HEAD_CHARS:
                return [], ""
            return self._refuse()
        name = _HEAD.match(self._head[:brace])
        if name is None or len(name[1]) > MAX_NAME_CHARS:
            return self._refuse()
        self._arguments = JsonValue()
        begun = CallBegun(self.next_call, name[1])
        parts, rest = self._go_on(self._head[brace:])
        return [begun, *parts], rest

    def _refuse(self) -> tuple[list[Part], str]:
        self.is_over = True
        return [Said(self._lead)], self._head

    def _go_on(self, text: str) -> tuple[list[Part], str]:
        if self._list is not None:
            parts, rest = self._list.feed(text)
            self.is_over, self.next_call = self._list.is_over, self._list.next_call
            return parts, rest
        if self._arguments is None:
            return [], text
        end = self._arguments.feed(text, 0)
        argued = CallArgued(self.next_call, text[:end])
        if self._arguments.is_done:
            self.is_over = True
            self.next_call += 1
        return [argued] if end else [], text[end:]
