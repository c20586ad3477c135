"""Calls behind a marker, as most models write them.

hermes        <tool_call>{"name": …, "arguments": {…}}</tool_call>, or a list of them between the marks
qwen3_coder   <tool_call><function=name><parameter=key>value</parameter></function></tool_call>
mistral       [TOOL_CALLS][{"name": …, "arguments": {…}}, …], or [TOOL_CALLS]name[ARGS]{…}
llama3_json   <|python_tag|>{"name": …, "parameters": {…}}; …
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from headway.gateway.answer_parts import Part, Said
from headway.gateway.function_calls import FunctionCalls
from headway.gateway.held_text import HeldText
from headway.gateway.json_calls import JsonCalls
from headway.gateway.mistral_calls import MistralCalls

HERMES: Final = "<tool_call>"
MISTRAL: Final = "[TOOL_CALLS]"
PYTHON_TAG: Final = "<|python_tag|>"


class Calls(Protocol):
    """What stands behind one marker."""

    @property
    def next_call(self) -> int:
        """The number of the next call of the answer."""
        ...

    @property
    def is_over(self) -> bool:
        """Whether what follows are words again."""
        ...

    def feed(self, text: str) -> tuple[list[Part], str]:
        """The parts in this text, and what it leaves once the calls are over."""
        ...

    def close(self) -> list[Part]:
        """The text has ended: what was held back."""
        ...


class HermesCalls:
    """What follows ``<tool_call>``: JSON, or Qwen3-Coder's functions; the first character tells."""

    def __init__(self, first_call: int, lead: str, texts: Mapping[str, frozenset[str]]) -> None:
        self._first_call = first_call
        self._lead = lead
        self._texts = texts
        self._space = ""
        self._calls: Calls | None = None

    @property
    def next_call(self) -> int:
        """The number of the next call of the answer."""
        return self._first_call if self._calls is None else self._calls.next_call

    @property
    def is_over(self) -> bool:
        """Whether what follows are words again."""
        return self._calls is not None and self._calls.is_over

    def feed(self, text: str) -> tuple[list[Part], str]:
        """As Calls says."""
        if self._calls is None:
            self._space += text
            first = self._space.lstrip()[:1]
            if not first:
                return [], ""
            text = self._space
            self._calls = (
                FunctionCalls(self._first_call, self._lead, self._texts)
                if first == "<"
                else JsonCalls(self._first_call, self._lead, "</tool_call>")
            )
        return self._calls.feed(text)

    def close(self) -> list[Part]:
        """As Calls says."""
        return [Said(self._lead + self._space)] if self._calls is None else self._calls.close()


class MarkedCalls:
    """Words up to a marker, calls behind it, and words again after them."""

    def __init__(self, markers: Sequence[str], texts: Mapping[str, frozenset[str]]) -> None:
        self.next_call = 0
        self._words = HeldText(markers)
        self._texts = texts
        self._calls: Calls | None = None

    def feed(self, text: str) -> list[Part]:
        """The parts that this text completes."""
        parts: list[Part] = []
        while text:
            if self._calls is None:
                found = self._words.feed(text)
                parts += [Said(found.words)] if found.words else []
                if found.marker is not None:
                    self._calls = self._behind(found.marker, found.space)
                text = found.rest
                continue
            made, text = self._calls.feed(text)
            parts += made
            if self._calls.is_over:
                self.next_call, self._calls = self._calls.next_call, None
        return parts

    def close(self) -> list[Part]:
        """The text has ended: what was held back, less the space after a call."""
        if self._calls is not None:
            return self._calls.close()
        rest = self._words.rest()
        return [Said(rest)] if rest and (rest.strip() or not self.next_call) else []

    def _behind(self, marker: str, space: str) -> Calls:
        if marker == MISTRAL:
            return MistralCalls(self.next_call, space + marker)
        if marker == PYTHON_TAG:
            # It says "for a program": without a call behind it, nothing that a reader should see.
            return JsonCalls(self.next_call, space)
        return HermesCalls(self.next_call, space + marker, self._texts)
