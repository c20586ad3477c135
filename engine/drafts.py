"""The runner's side of guesses: each is right as long as it is the token that was chosen without it.

    token_ids   [ … last known ][ draft 1 ][ draft 2 ] … [ draft m ]
    rows                  row 0      row 1      row 2         row m      each chooses the token after it
    kept        rows 0 … k, where drafts 1 … k are what rows 0 … k-1 chose: k right guesses and one token more

Nothing is accepted by chance: a row draws with the number that its position always draws with, so greedy and
sampled answers are token for token those without guesses (the target's distribution, whatever was guessed).
"""

from __future__ import annotations

from collections.abc import Sequence

from headway.engine.values import Chunk, Sampled


def has_drafts(chunks: Sequence[Chunk]) -> bool:
    """Whether any chunk holds guesses."""
    return any(chunk.draft_tokens for chunk in chunks)


def drafts_of(chunk: Chunk) -> tuple[int, ...]:
    """The chunk's guesses."""
    return chunk.token_ids[len(chunk.token_ids) - chunk.draft_tokens :] if chunk.draft_tokens else ()


def sampling_rows(chunk: Chunk) -> int:
    """Rows of logits that the chunk needs: its last ones."""
    return 1 + chunk.draft_tokens if chunk.samples else 0


def right_tokens(chunks: Sequence[Chunk], sampled: Sequence[Sampled]) -> list[tuple[Sampled, ...]]:
    """Of what all rows chose, what counts: for each sampling chunk its right guesses and one token more."""
    kept: list[tuple[Sampled, ...]] = []
    row = 0
    for chunk in chunks:
        rows = sampling_rows(chunk)
        if rows:
            right = count_right(drafts_of(chunk), sampled[row : row + rows])
            kept.append(tuple(sampled[row : row + right + 1]))
            row += rows
    return kept


def count_right(drafts: Sequence[int], sampled: Sequence[Sampled]) -> int:
    """How many guesses are right, up to the first wrong one."""
    for place, (draft, entry) in enumerate(zip(drafts, sampled, strict=False)):
        if draft != entry.token_id:
            return place
    return len(drafts)
