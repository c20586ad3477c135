"""Text to token ids and back, over Hugging Face's ``tokenizers`` library."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import AddedToken

from headway.engine.chat_template import ChatTemplate
from headway.engine.errors import InvalidTokenError, ModelError, RequestError

SHOWN_TOKENS: Final = frozenset(
    {
        *("<think>", "</think>", "[THINK]", "[/THINK]"),
        *("<tool_call>", "</tool_call>", "<|python_tag|>"),
        *("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
    }
)
"""Special tokens that a reader needs: without them a call or a thought could not be told from words."""
SPACE_MARK: Final = "▁"  # SentencePiece's stand-in for a space


class Spelling(Enum):
    """How a vocabulary writes bytes down."""

    BYTE_LEVEL = "byte_level"
    """GPT-2's: each byte is one printable character."""
    SENTENCEPIECE = "sentencepiece"
    """Plain text with ▁ for a space, and ``<0x0A>`` for single bytes."""


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """Ids with a role. ``prefix`` and ``suffix`` go around a text encoded with special tokens.

    None leaves that to the tokenizer's own post-processor.
    """

    eos_token_ids: frozenset[int]
    around: tuple[tuple[int, ...], tuple[int, ...]] | None = None


class TextTokenizer:
    """Implements the engine's Tokenizer; ids are those of transformers' fast tokenizer for the same files.

    ``vocab_size`` is the model's, which often has more rows than the vocabulary has tokens: an id without a
    token has no bytes.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        spelling: Spelling,
        special_ids: SpecialIds,
        chat_template: ChatTemplate,
        *,
        vocab_size: int,
    ) -> None:
        self._backend = backend
        self._special_ids = special_ids
        self._chat_template = chat_template
        self._tokens = _tokens_by_id(backend, vocab_size)
        self._bytes = _TokenBytes(spelling, backend)
        self._known_bytes: dict[int, bytes] = {}
        """Of tokens that were asked for: each once in every step of every answer."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return len(self._tokens)

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        return self._special_ids.eos_token_ids

    def encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """Ids of a text; special tokens written out in it are recognised."""
        around = self._special_ids.around
        try:
            ids = self._backend.encode(text, add_special_tokens=add_special_tokens and around is None).ids
        except TypeError:
            # The library takes only what has a UTF-8 form.
            raise RequestError(
                "the text holds half a character (a lone surrogate); send valid Unicode"
            ) from None
        if not add_special_tokens or around is None:
            return tuple(ids)
        prefix, suffix = around
        return (*prefix, *ids, *suffix)

    @property
    def chat_template(self) -> str:
        """The text of the model's chat template; empty where it has none."""
        return self._chat_template.source

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        names: Mapping[str, object] | None = None,
    ) -> tuple[int, ...]:
        """Ids of the prompt that the model's chat template makes; ChatTemplateError when it refuses."""
        return self.encode(self._chat_template.render(messages, tools, names), add_special_tokens=False)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds after earlier text; empty for special tokens and unused ids.

        Joined, they are the decoded text. (SentencePiece's decoder drops one space at the very start of a
        text; an answer follows a prompt, so the space stays here.)
        """
        known = self._known_bytes.get(token_id)
        if known is None:
            token = self._token(token_id)
            known = self._known_bytes[token_id] = b"" if token is None else self._bytes.of(token_id, token)
        return known

    def token_label(self, token_id: int) -> str:
        """A printable name: the token's text, its name when special, its bytes in hex when no text."""
        token = self._token(token_id)
        if token is None:
            return f"<unused {token_id}>"
        raw = self._bytes.of(token_id, token)
        if not raw:
            return token
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "".join(f"\\x{byte:02x}" for byte in raw)

    def _token(self, token_id: int) -> str | None:
        if not 0 <= token_id < len(self._tokens):
            raise InvalidTokenError(f"token id {token_id} is outside the vocabulary of {len(self._tokens)}")
        return self._tokens[token_id]


class _TokenBytes:
    """Bytes of a token as the vocabulary spells it."""

    def __init__(self, spelling: Spelling, backend: tokenizers.Tokenizer) -> None:
        self._spelling = spelling
        # Added tokens are matched in the text as they stand, outside the vocabulary's spelling.
        added = backend.get_added_tokens_decoder()
        self._added = {
            token_id: b"" if token.special and token.content not in SHOWN_TOKENS else token.content.encode()
            for token_id, token in added.items()
        }

    def of(self, token_id: int, token: str) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            return added
        if self._spelling is Spelling.BYTE_LEVEL:
            return _byte_level_bytes(token)
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return token.replace(SPACE_MARK, " ").encode()


def _byte_level_bytes(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF_CHARACTER[character] for character in token])
    except KeyError:
        return token.encode()  # not in the alphabet: written as plain text


def byte_alphabet() -> Mapping[str, int]:
    """GPT-2's printable character for each byte (``bytes_to_unicode``), as character to byte."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF_CHARACTER: Final = byte_alphabet()


@contextmanager
def damaged_tokenizer(path: Path) -> Generator[None]:
    """Turn the library's complaints about a file's tables into ModelError.

    It raises bare Exception for most of them, and a Rust panic, which is no Exception, for some merges.
    """
    try:
        yield
    except (ModelError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"{path}: the tokenizer is damaged ({reason}); fetch the file again") from error


def add_tokens(backend: tokenizers.Tokenizer, tokens: list[AddedToken]) -> None:
    """Have tokens matched whole in any text; special ones by their own flag."""
    backend.add_tokens(tokens)  # pyright: ignore[reportUnknownMemberType]  # the library's bare `list`


def _tokens_by_id(backend: tokenizers.Tokenizer, vocab_size: int) -> list[str | None]:
    """Tokens by id; ids that the vocabulary skips hold None."""
    vocabulary = backend.get_vocab(with_added_tokens=True)
    tokens: list[str | None] = [None] * max(vocab_size, 1 + max(vocabulary.values(), default=-1))
    for token, token_id in vocabulary.items():
        tokens[token_id] = token
    return tokens
