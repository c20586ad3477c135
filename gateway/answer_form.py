"""How the text of an answer is to be read: which parts of it are words, thoughts and calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from headway.gateway.answer_parts import CallArgued, CallBegun, Part, Said
from headway.gateway.bare_calls import BareCalls, NamedCall, PythonCalls, json_calls
from headway.gateway.json_calls import JsonCalls
from headway.gateway.marked_calls import HERMES, MISTRAL, PYTHON_TAG, MarkedCalls
from headway.gateway.thoughts import Thoughts
from headway.queueing.answer_formats import THOUGHT_MARKS, ReasoningFormat, ToolFormat

_MARKERS: Final[Mapping[ToolFormat, tuple[str, ...]]] = {
    "auto": (HERMES, MISTRAL, PYTHON_TAG),
    "hermes": (HERMES,),
    "qwen3_coder": (HERMES,),
    "mistral": (MISTRAL,),
    "llama3_json": (PYTHON_TAG,),
}


class PartReader(Protocol):
    """Cuts text that arrives in pieces into parts; however it is cut, the parts add up to the same."""

    def feed(self, text: str) -> list[Part]:
        """The parts that this text completes."""
        ...

    def close(self) -> list[Part]:
        """The text has ended: what was held back."""
        ...


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What is known of an answer before it comes; by default it is words and nothing else."""

    tool_format: ToolFormat = "none"
    reasoning_format: ReasoningFormat = "none"
    function_names: frozenset[str] = frozenset()
    """The functions that may be called; none: calls are not looked for."""
    text_parameters: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])
    """By function, its parameters that are texts."""
    forced: str | None = None
    """A constraint made the answer a list of calls (empty), or the arguments of the function named here."""
    is_parallel: bool = True
    """Whether an answer may call more than once."""
    calls_lead: bool = False
    """Whether calls come first or not at all: marks inside the answer are then words."""

    def reader(self) -> PartReader:
        """Reads one choice from its beginning."""
        if self.forced is not None:
            return self._forced()
        calls = self._calls()
        marks = _marks(self.reasoning_format)
        if calls is None and not marks:
            return Words()
        return AnswerReader(Thoughts(marks), calls or Words(), is_parallel=self.is_parallel)

    def _forced(self) -> PartReader:
        if self.forced:
            return NamedCall(self.forced)
        return BareCalls("[", JsonCalls(0, ""), MarkedCalls((), {}))

    def _calls(self) -> PartReader | None:
        if not self.function_names or self.tool_format == "none":
            return None
        words = MarkedCalls(_MARKERS.get(self.tool_format, ()), self.text_parameters)
        match self.tool_format:
            case "llama3_json":
                return BareCalls("{", json_calls(self.function_names), words)
            case _ if self.calls_lead:
                return LeadingCalls(_MARKERS.get(self.tool_format, ()), words)
            case "pythonic":
                return BareCalls("[", PythonCalls(self.function_names), words)
            case _:
                return words


def _marks(reasoning_format: ReasoningFormat) -> dict[str, str]:
    wanted = THOUGHT_MARKS if reasoning_format == "auto" else {reasoning_format}
    return {opening: closing for name, (opening, closing) in THOUGHT_MARKS.items() if name in wanted}


class Words:
    """An answer that is nothing but words."""

    def feed(self, text: str) -> list[Part]:
        """The text as it is."""
        return [Said(text)] if text else []

    def close(self) -> list[Part]:
        """Nothing is held back."""
        return []


class LeadingCalls:
    """Calls where the answer begins with one of the marks, else words to the end."""

    def __init__(self, marks: tuple[str, ...], calls: MarkedCalls) -> None:
        self._marks = marks
        self._calls = calls
        self._reader: PartReader | None = None
        self._held = ""

    def feed(self, text: str) -> list[Part]:
        """As PartReader says."""
        if self._reader is None:
            self._held += text
            if not (begun := self._held.lstrip()) or any(
                mark.startswith(begun) and mark != begun for mark in self._marks
            ):
                return []
            self._reader = self._calls if begun.startswith(self._marks) else Words()
            text = self._held
        return self._reader.feed(text)

    def close(self) -> list[Part]:
        """As PartReader says."""
        return Words().feed(self._held) if self._reader is None else self._reader.close()


class AnswerReader:
    """First thoughts, then words and calls; without ``is_parallel`` the first call only."""

    def __init__(self, thoughts: Thoughts, words: PartReader, *, is_parallel: bool) -> None:
        self._thoughts = thoughts
        self._words = words
        self._is_parallel = is_parallel

    def feed(self, text: str) -> list[Part]:
        """As PartReader says."""
        thoughts, words = self._thoughts.feed(text)
        return [*thoughts, *self._allowed(self._words.feed(words))]

    def close(self) -> list[Part]:
        """As PartReader says."""
        thoughts, rest = self._thoughts.rest()
        return [*thoughts, *self._allowed([*self._words.feed(rest), *self._words.close()])]

    def _allowed(self, parts: list[Part]) -> list[Part]:
        if self._is_parallel:
            return parts
        return [part for part in parts if not isinstance(part, CallBegun | CallArgued) or part.call == 0]


@dataclass(slots=True)
class Gathered:
    """A whole answer, put together from its parts."""

    words: str = ""
    thoughts: str = ""
    calls: list[list[str]] = field(default_factory=list[list[str]])
    """Name and arguments of each."""

    @classmethod
    def from_text(cls, form: AnswerForm, text: str) -> Gathered:
        """The parts of a text that is complete."""
        reader = form.reader()
        gathered = cls()
        for part in [*reader.feed(text), *reader.close()]:
            gathered.add(part)
        return gathered

    def add(self, part: Part) -> None:
        """Take in one part."""
        match part:
            case Said(text):
                self.words += text
            case CallBegun(_, name):
                self.calls.append([name, ""])
            case CallArgued(_, text):
                self.calls[-1][1] += text
            case _:
                self.thoughts += part.text
