"""Ids of tool calls."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz234567"
_CHARS: Final = 9
"""Nine letters and digits: the templates of Mistral's models take no other id, all others take any."""


def call_id(answer_id: str, choice: int, call: int) -> str:
    """The id of one call; drawn from the answer's, so that a repeat of the answer names it alike."""
    drawn = blake2b(f"{answer_id}/{choice}/{call}".encode(), digest_size=_CHARS).digest()
    return "".join(_ALPHABET[byte & 31] for byte in drawn)
