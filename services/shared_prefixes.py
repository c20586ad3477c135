"""Beginnings of prompts that the operator lets all tenants share: everything else in the cache is salted."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path

from headway.engine.errors import RequestError
from headway.engine.interfaces import Tokenizer
from headway.services.errors import UsageError


def read_shared_prefixes(paths: Iterable[Path], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Token ids of each file's text: as the start of a plain prompt, and as the system message of a chat.

    Raises UsageError for a file that cannot be read, is no text, or is empty.
    """
    return tuple(prefix for path in paths for prefix in _prefixes(_text(path), tokenizer))


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the shared prefix {path} cannot be read: {error}") from None
    if not text.strip():
        raise UsageError(
            f"the shared prefix {path} is empty", hint="put the system prompt that all tenants use into it"
        )
    return text


def _prefixes(text: str, tokenizer: Tokenizer) -> Iterable[tuple[int, ...]]:
    yield tokenizer.encode(text, add_special_tokens=True)
    try:
        # What the template writes before any user's words is what two chats with this system message share.
        one, other = (
            tokenizer.render_chat(
                [{"role": "system", "content": text.strip()}, {"role": "user", "content": word}]
            )
            for word in ("a", "0")
        )
    except RequestError:
        return  # a model without chats, or without system messages
    yield tuple(a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
