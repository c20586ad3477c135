"""The runner's side of look-ahead: a plan made before a token was sampled is filled in with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headway.engine.errors import InvariantError
from headway.engine.values import PLACEHOLDER, Chunk, RequestKey, Sampled

WANTED: Final = (PLACEHOLDER,)
"""The tokens of a chunk that waits for the step before."""


class LastStep:
    """What the step executed last has sampled. A placeholder is always of the step just before."""

    def __init__(self) -> None:
        self._chunks: Sequence[Chunk] = ()
        self._sampled: Sequence[Sampled] = ()

    def remember(self, chunks: Sequence[Chunk], sampled: Sequence[Sampled]) -> None:
        """A step was executed; ``sampled``: one entry per sampling chunk, in order."""
        self._chunks, self._sampled = chunks, sampled

    def fill(self, chunks: tuple[Chunk, ...]) -> tuple[Chunk, ...]:
        """The chunks with every placeholder's token; raises InvariantError for one that was not sampled."""
        if not any(chunk.token_ids == WANTED for chunk in chunks):
            return chunks
        tokens = self._tokens()
        return tuple([self._filled(chunk, tokens) for chunk in chunks])

    def _tokens(self) -> dict[tuple[RequestKey, int], int]:
        """By request and position."""
        sampling = [chunk for chunk in self._chunks if chunk.samples]
        return {
            (chunk.key, chunk.start + len(chunk.token_ids)): entry.token_id
            for chunk, entry in zip(sampling, self._sampled, strict=True)
        }

    def _filled(self, chunk: Chunk, tokens: dict[tuple[RequestKey, int], int]) -> Chunk:
        if chunk.token_ids != WANTED:
            return chunk
        token_id = tokens.get((chunk.key, chunk.start))
        if token_id is None:
            raise InvariantError(f"{chunk.key}: the step before sampled no token for position {chunk.start}")
        return chunk._replace(token_ids=(token_id,))
