"""What the GPU's runner remembers of requests: all of it follows from the plans."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headway.engine.answer import grammar_of, has_penalties, signed_64
from headway.engine.chunk_checks import check_chunk
from headway.engine.grammars import Grammars
from headway.engine.sampler import SMALLEST_TEMPERATURE
from headway.engine.token_counts import KnownTokens
from headway.engine.values import PLACEHOLDER, Admitted, Chunk, RequestKey, Sampling


class FusedRequest:
    """Sampling parameters in the kernels' terms, and the block table as an array."""

    __slots__ = ("_block_table", "_prompt_tokens", "_table", "floor", "grammar", "key", "known", "sampling",
                 "seed", "temperature")  # fmt: skip

    def __init__(self, admitted: Admitted, grammars: Grammars | None = None) -> None:
        sampling = admitted.sampling
        self.key: RequestKey = admitted.key
        self.sampling: Sampling = sampling
        self._prompt_tokens = len(admitted.prompt_token_ids)
        self.temperature = 0.0 if sampling.is_greedy else max(sampling.temperature, SMALLEST_TEMPERATURE)
        self.floor = math.log(sampling.min_p) if sampling.min_p > 0 else -math.inf
        self.seed = signed_64(sampling.seed)
        self.known: KnownTokens | None = KnownTokens(admitted) if has_penalties(sampling) else None
        """None: it has no penalties, so its tokens need not be kept."""
        self.grammar = grammar_of(admitted, grammars)
        self._block_table: tuple[int, ...] = ()
        self._table: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def table(self, block_table: tuple[int, ...]) -> NDArray[np.int64]:
        """The block table as an array, converted only when it grew."""
        if block_table is not self._block_table:
            self._block_table = block_table
            self._table = np.array(block_table, dtype=np.int64)
        return self._table

    def index_after(self, chunk: Chunk) -> int:
        """Position in the answer (0-based) of the token behind the last known one, before any guess."""
        return chunk.start + len(chunk.token_ids) - chunk.draft_tokens - self._prompt_tokens

    def learn(self, chunk: Chunk) -> None:
        """Remember the chunk's tokens if anybody will ask: no guesses, nor what only the device knows."""
        if chunk.token_ids[0] == PLACEHOLDER:
            return
        token_ids = chunk.token_ids[: len(chunk.token_ids) - chunk.draft_tokens]
        if self.known is not None:
            self.known.learn(chunk.start, token_ids)
        if self.grammar is not None:
            self.grammar.tell(chunk.start - self._prompt_tokens, token_ids)

    def hear(self, index: int, token_id: int) -> None:
        """Token ``index`` of the answer was chosen."""
        if self.known is not None:
            self.known.learn(self._prompt_tokens + index, (token_id,))
        if self.grammar is not None:
            self.grammar.tell(index, (token_id,))


class FusedRequests:
    """Those that were admitted and not released since."""

    def __init__(self, max_model_len: int, block_size: int) -> None:
        self._max_model_len = max_model_len
        self._block_size = block_size
        self._requests: dict[str, FusedRequest] = {}

    def update(
        self, released: Sequence[RequestKey], admitted: Sequence[Admitted], grammars: Grammars | None
    ) -> list[FusedRequest]:
        """Forget and learn; returns the forgotten ones. ``grammars``: of constrained newcomers."""
        gone: list[FusedRequest] = []
        for key in released:
            request = self._requests.get(key.request_id)
            if request is not None and request.key == key:
                gone.append(self._requests.pop(key.request_id))
        for newcomer in admitted:
            self._requests[newcomer.key.request_id] = FusedRequest(newcomer, grammars)
        return gone

    def of(self, chunk: Chunk) -> FusedRequest:
        """The chunk's request. InvariantError: a chunk that no honest plan holds."""
        request = self._requests.get(chunk.key.request_id)
        check_chunk(
            chunk,
            is_announced=request is not None and request.key == chunk.key,
            max_model_len=self._max_model_len,
            block_size=self._block_size,
        )
        assert request is not None
        return request
