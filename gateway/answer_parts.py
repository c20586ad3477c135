"""What an answer is made of: words, thoughts and calls of tools, in pieces as they arrive."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Said:
    """Words for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Words of the reasoning before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call of this tool, the ``call``-th of the answer; its arguments follow."""

    call: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArgued:
    """More of the JSON text of a call's arguments."""

    call: int
    text: str


Part = Said | Thought | CallBegun | CallArgued
