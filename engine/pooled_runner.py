"""What a runner over one pool of KV blocks says of itself: the facts that the engine plans by."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from headway.engine.grammars import Grammars
from headway.engine.host_cache import HostCache
from headway.engine.interfaces import Tokenizer
from headway.engine.kv_cache import KVCache
from headway.engine.model_config import ModelConfig
from headway.engine.pool_pages import PoolPages
from headway.engine.token_masks import MaskMaker


class PooledRunner:
    """The properties of ``Runner`` for one model, one KV pool and its swapped requests."""

    def __init__(
        self, config: ModelConfig, cache: KVCache, host: HostCache, *, dtype: torch.dtype, max_model_len: int
    ) -> None:
        self._cache = cache
        self._host = host
        self._dtype = dtype
        self._max_model_len = max_model_len
        self._vocab_size = config.vocab_size
        self._eos_token_ids = config.eos_token_ids
        self.grammars: Grammars | None = None
        """What holds answers to their form; None: this runner cannot."""
        self._masks: MaskMaker | None = None

    def hold_to_grammars(self, tokenizer: Callable[[], Tokenizer], *, threads: int) -> None:
        """Take constrained requests from now on; so many threads compute masks."""
        self.grammars = Grammars(
            tokenizer, vocab_size=self._vocab_size, end_token_ids=self._eos_token_ids, threads=threads
        )
        self._masks = MaskMaker(self.grammars, beside=self._cache.pools.device.type == "cuda")

    @property
    def pages(self) -> PoolPages | None:
        """The pool's memory where the system provides it page by page: on a CPU."""
        return PoolPages(self._cache.pools) if self._cache.pools.device.type == "cpu" else None

    @property
    def block_count(self) -> int:
        """KV blocks in the pool."""
        return self._cache.block_count

    @property
    def block_size(self) -> int:
        """Tokens per KV block."""
        return self._cache.block_size

    @property
    def host_slots(self) -> int:
        """Blocks of swapped requests that host memory holds."""
        return self._host.slot_count

    @property
    def block_bytes(self) -> int:
        """Bytes of one KV block over all layers, keys and values, on this device."""
        return math.prod(self._cache.block_shape) * self._cache.pools.dtype.itemsize

    @property
    def max_model_len(self) -> int:
        """Most tokens (prompt + answer) of one request, by the model, the caller's limit and the pool."""
        return self._max_model_len

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        return self._vocab_size

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end an answer unless ``ignore_eos``."""
        return self._eos_token_ids

    @property
    def dtype(self) -> torch.dtype:
        """The number format of weights and activations; of KV too, unless that has a format of its own."""
        return self._dtype
