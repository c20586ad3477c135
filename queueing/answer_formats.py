"""How a model writes calls and thoughts into its text: the names that a worker's card carries.

The text of a token stream is the model's own, markers included; whoever shows it as calls and thoughts
(the gateway does) reads it by these names.
"""

from __future__ import annotations

from typing import Final, Literal

ToolFormat = Literal["auto", "none", "hermes", "mistral", "llama3_json", "pythonic", "qwen3_coder"]
"""auto: whichever marker comes, for a model whose format nobody knows; none: calls are left in the text."""

ReasoningFormat = Literal["auto", "none", "think", "mistral"]
"""Where an answer begins with thoughts: ``<think>…</think>`` or ``[THINK]…[/THINK]``."""

TOOL_FORMATS: Final[tuple[ToolFormat, ...]] = (
    "auto",
    "none",
    "hermes",
    "mistral",
    "llama3_json",
    "pythonic",
    "qwen3_coder",
)
REASONING_FORMATS: Final[tuple[ReasoningFormat, ...]] = ("auto", "none", "think", "mistral")

THOUGHT_MARKS: Final = {"think": ("<think>", "</think>"), "mistral": ("[THINK]", "[/THINK]")}
"""What opens thoughts and what closes them."""
