"""Which buckets a GPU's runner is going to meet: recorded, or at least compiled, before anybody waits.

    decodes   every bucket that plain decodes of up to ``--max-sequences`` requests can have, over contexts
              from one token to the longest: recorded
    others    one for each form that kernels are compiled in: chunks, guesses, penalties, log-probabilities.
              Not foreseen: steps of fewer than ``GRAPH_TOKENS`` tokens that are not padded though there are
              graphs, since their contexts are cut into more than ``GRAPH_ITEMS`` items

How many tokens, rows and items a decode's bucket has follows from how many requests and from bounds of what
attention cuts (``most_decode_items``): no step over real contexts has to be run to know.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from headway.engine.fused_sampler import FEWEST_BIASES, FEWEST_TOP
from headway.engine.fused_step import (
    DECODE_TOKENS,
    FEWEST_ITEMS,
    GRAPH_ITEMS,
    GRAPH_TOKENS,
    MIXED_ROWS,
    MIXED_TOKENS,
    Bucket,
    padded_items,
)
from headway.kernels import varlen_batch
from headway.kernels.attention_plan import AttentionShape
from headway.kernels.attention_tiles import AttentionTile
from headway.kernels.launch import Chip
from headway.kernels.matmul_tiles import ROW_CLASSES
from headway.kernels.varlen_batch import attention_tile, filling_items, most_decode_items

CHUNK_TOKENS = (*ROW_CLASSES, GRAPH_TOKENS + 1, GRAPH_TOKENS + 16)
"""Of steps with prefill chunks: products have other tiles for each class of rows, and kernels are compiled
apart for multiples of 16, as padded steps are."""
UNPADDED_TOKENS = tuple(rows - 4 for rows in ROW_CLASSES if rows < GRAPH_TOKENS)
"""Those that are no multiples, beside the largest class's above: steps have such sizes without graphs."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What steps of one runner may be."""

    shape: AttentionShape
    chip: Chip
    most_rows: int
    """Requests of a step."""
    longest: int
    """Tokens of a request, prompt and answer."""
    is_deterministic: bool = False
    has_graphs: bool = True
    """Small steps are padded to buckets."""
    most_drafts: int = 0
    """Guessed tokens of a request in a step: each has a row of logits beside the request's."""

    @property
    def most_choices(self) -> int:
        """Rows of logits in the largest bucket that steps can have and that is kept."""
        wanted = min(self.most_rows * (1 + self.most_drafts), MIXED_ROWS[-1])
        return next(rows for rows in MIXED_ROWS if rows >= wanted)

    def decodes(self) -> tuple[Bucket, ...]:
        """All buckets of plain decodes that are kept, smallest first."""
        tile = self._tile(1)
        buckets: list[Bucket] = []
        fewest = 1
        for tokens in DECODE_TOKENS:
            if fewest > self.most_rows:
                break
            rows = range(fewest, min(tokens, self.most_rows) + 1)
            fewest = tokens + 1
            whole = sorted({padded_items(count) for count in rows})
            for is_split, sizes in ((False, whole), (True, self._split_items(tokens, rows[-1]))):
                buckets += [
                    Bucket(tokens, tokens, items, is_split, tile, is_decode=True, is_kept=True)
                    for items in sizes
                ]
        return tuple(buckets)

    def forms(self) -> tuple[Bucket, ...]:
        """One bucket for each form that kernels are compiled in beside those; none is kept."""
        return tuple(self._forms())

    def _split_items(self, tokens: int, rows: int) -> list[int]:
        shortest = varlen_batch.FIXED_SPLIT if self.is_deterministic else varlen_batch.SPLIT_TOKENS[0]
        if self.longest <= shortest:
            return []
        most = most_decode_items(
            rows, self.longest, self.shape, self.chip, deterministic=self.is_deterministic
        )
        sizes = [padded_items(tokens + filling_items(self.shape, self.chip))]
        while sizes[-1] < min(most, GRAPH_ITEMS):
            sizes.append(2 * sizes[-1])
        return sizes

    def _forms(self) -> Iterator[Bucket]:
        few = self._of(MIXED_TOKENS[0], self._tile(1))
        tiles = {self._tile(longest) for longest in range(2, varlen_batch.MIXED_TOKENS + 1)}
        for tile in sorted(tiles, key=lambda tile: (tile.rows, tile.keys)):
            yield replace(few, tile=tile, rows=self.most_choices)
            yield replace(few, tile=tile, is_split=True)
        for tokens in (*CHUNK_TOKENS, *(() if self.has_graphs else UNPADDED_TOKENS)):
            yield self._of(tokens, self._tile(varlen_batch.MIXED_TOKENS))
        for is_penalised, biases in ((True, 0), (False, FEWEST_BIASES), (True, FEWEST_BIASES)):
            yield replace(few, is_penalised=is_penalised, biases=biases, top_logprobs=FEWEST_TOP)

    def _of(self, tokens: int, tile: AttentionTile) -> Bucket:
        return Bucket(
            tokens, min(tokens, FEWEST_ITEMS), FEWEST_ITEMS, is_split=False, tile=tile, is_decode=False,
            is_kept=False,
        )  # fmt: skip

    def _tile(self, longest: int) -> AttentionTile:
        return attention_tile(self.shape, longest, self.chip, deterministic=self.is_deterministic)
