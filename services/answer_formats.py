"""How a model writes calls and thoughts, read off its chat template: nothing else says it."""

from __future__ import annotations

import re
from typing import Final

from headway.queueing.answer_formats import ReasoningFormat, ToolFormat

_TOOL_MARKS: Final[tuple[tuple[ToolFormat, re.Pattern[str]], ...]] = (
    ("mistral", re.compile(r"\[TOOL_CALLS\]")),
    ("qwen3_coder", re.compile(r"<tool_call>.*<function=", re.DOTALL)),
    ("hermes", re.compile(r"<tool_call>")),
    ("pythonic", re.compile(r"\[func_name1\(|<\|python_start\|>")),
    ("llama3_json", re.compile(r"<\|python_tag\|>|\"parameters\": dictionary of argument name")),
)
"""The first that a template shows is its own: some quote a second one in their instructions."""


_READS_TOOLS: Final = re.compile(r"\{%[^%]*\btools\b|\{\{[^}]*\btools\b")


def tool_format(template: str) -> ToolFormat:
    """The format in which a model was taught to call.

    A template without tools has them told in words, which ask for hermes (``engine/chat_turns.py``).
    """
    if not _READS_TOOLS.search(template):
        return "hermes"
    for name, mark in _TOOL_MARKS:
        if mark.search(template):
            return name
    return "auto"


def reasoning_format(template: str) -> ReasoningFormat:
    """How a template marks thoughts; one that shows no marks has none."""
    if "[THINK]" in template:
        return "mistral"
    return "think" if "</think>" in template else "none"


def settled(asked: str, found: str) -> str:
    """What the operator asked for, or, for auto, what was found."""
    return found if asked == "auto" else asked
