"""The prefix cache: which blocks hold which tokens' KV, and who gives way when room is needed.

    digest(i) = sha256(digest(i - 1), scope, tokens of block i)        scope = salt, adapter, weights version

The salt is the tenant's name, so nobody learns of another tenant's prompts through timing; only the blocks
that lie inside a prefix which the operator allows to be shared have none. sha256 because a collision would
show one tenant another's text.

The cache knows contents and the order of eviction; references, fences and copies are the ledger's.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from headway.engine.errors import InvariantError

MOST_SCOPES = 4096
"""Tenants whose scope is remembered: tenants come and go without end."""


class HashChain:
    """Digests of one request's full blocks, each computed once and only when asked for.

    ``tokens`` is the request's own growing list. ``matched_blocks`` remembers the last match, so a repeated
    look costs one or two lookups.
    """

    __slots__ = ("adapter", "digests", "matched_blocks", "reset", "shared_blocks", "tenant", "tokens")

    def __init__(self, tokens: list[int], tenant: str, adapter: str) -> None:
        self.tokens = tokens
        self.tenant = tenant
        self.adapter = adapter
        self.shared_blocks = 0
        """Of the digests, those of blocks inside a prefix that all tenants may share."""
        self.digests: list[bytes] = []
        self.matched_blocks = 0
        self.reset = 0

    def owner(self, index: int) -> str | None:
        """Whose cache share the block counts in; None: everybody's."""
        return None if index < self.shared_blocks else self.tenant


class PrefixCache:
    """A map from digests to published blocks, and per tenant the order in which unused ones are evicted.

    Eviction takes the least recently used block of the tenant most above its share (blocks per weight);
    shared prefixes go last. Not enabled: it never holds a block.
    """

    def __init__(
        self,
        block_size: int,
        *,
        is_enabled: bool = True,
        weights_version: str = "",
        shared_prefixes: Iterable[tuple[int, ...]] = (),
    ) -> None:
        self._block_size = block_size
        self._is_enabled = is_enabled
        self._weights_version = weights_version
        self._shared_prefixes = [list(prefix) for prefix in shared_prefixes]
        self.resets = 0
        """How often the weights changed."""
        self._blocks: dict[bytes, int] = {}
        self._published: dict[int, tuple[bytes, str | None, bytes | None]] = {}
        """Block to its digest, owner and parent's digest."""
        self._evictable: defaultdict[str | None, OrderedDict[int, None]] = defaultdict(OrderedDict)
        self._evictable_blocks = 0
        self._shares: dict[str | None, float] = {}
        """Evictable blocks per weight, of tenants that have any."""
        self._weights: dict[str, float] = {}
        self._scopes: dict[tuple[str | None, str], bytes] = {}
        self._expected: set[bytes] = set()
        self._under_way: set[bytes] = set()
        """What the step before computes, while it is not known to have ended."""
        self.evicted_blocks = 0

    # -- Content ---------------------------------------------------------------------------------------------

    def chain(self, tokens: list[int], tenant: str, adapter: str = "") -> HashChain:
        """The chain of a request; ``tokens`` is its own list and only ever grows."""
        return HashChain(tokens, tenant, adapter)

    def digest(self, chain: HashChain, index: int) -> bytes:
        """The digest of the chain's block ``index``, which must be full."""
        if chain.reset != self.resets:
            chain.digests.clear()
            chain.shared_blocks, chain.matched_blocks, chain.reset = 0, 0, self.resets
        if index >= len(chain.digests):
            self._lengthen(chain, index + 1)
        return chain.digests[index]

    def match(self, chain: HashChain, known_tokens: int) -> tuple[int, ...]:
        """The blocks that hold its first tokens, at most ``known_tokens - 1``: the last is computed."""
        if not self._blocks:
            chain.matched_blocks = 0
            return ()
        limit = (known_tokens - 1) // self._block_size
        count = min(chain.matched_blocks, limit)
        # Ancestors of a published block are published, so what is there is a prefix of the chain.
        while count and self.digest(chain, count - 1) not in self._blocks:
            count -= 1
        while count < limit and self.digest(chain, count) in self._blocks:
            count += 1
        chain.matched_blocks = count
        return tuple([self._blocks[digest] for digest in chain.digests[:count]])

    def publish(self, chain: HashChain, blocks: Sequence[int], first: int, end: int) -> int:
        """Let ``blocks[first:end]`` stand for the chain's there; returns where another block already does."""
        if not self._is_enabled or first >= end:
            return first
        self.digest(chain, end - 1)
        for index in range(first, end):
            digest, block = chain.digests[index], blocks[index]
            if self._blocks.setdefault(digest, block) != block:
                return index
            parent = chain.digests[index - 1] if index else None
            entry = (digest, chain.owner(index), parent)
            if self._published.setdefault(block, entry) != entry:
                raise InvariantError(f"block {block} is published twice")
        return end

    def is_published(self, block: int) -> bool:
        """Whether a hit may find the block: then nobody writes it."""
        return block in self._published

    # -- Duplicates: wait one step for whoever computes the same ---------------------------------------------

    def forget_expected(self, *, but_last: bool = False) -> None:
        """A new step: it computes nothing yet. ``but_last``: what the last one computes is under way."""
        self._under_way = self._expected if but_last else set()
        self._expected = set()

    def expect(self, chain: HashChain, computed_tokens: int) -> None:
        """This step computes the chain's block that ``computed_tokens`` has reached."""
        index = computed_tokens // self._block_size
        if self._is_enabled and (index + 1) * self._block_size <= len(chain.tokens):
            self._expected.add(self.digest(chain, index))

    def is_expected(self, chain: HashChain, known_tokens: int) -> bool:
        """Whether the first block that ``match`` misses is being computed for another request."""
        if not (self._expected or self._under_way):
            return False
        missed = len(self.match(chain, known_tokens))
        if missed >= (known_tokens - 1) // self._block_size:
            return False
        digest = self.digest(chain, missed)
        return digest in self._expected or digest in self._under_way

    # -- Eviction --------------------------------------------------------------------------------------------

    @property
    def evictable_blocks(self) -> int:
        """Published blocks in no table."""
        return self._evictable_blocks

    def evictable(self) -> Iterator[int]:
        """The published blocks in no table."""
        for line in self._evictable.values():
            yield from line

    def is_evictable(self, block: int) -> bool:
        """Whether the block is published and in no table."""
        entry = self._published.get(block)
        return entry is not None and block in self._evictable.get(entry[1], ())

    def set_weight(self, tenant: str, weight: float) -> None:
        """A tenant's share of the cache, relative to the others' (1 by default)."""
        self._weights[tenant] = weight
        self._reckon(tenant)

    def retire(self, blocks: Iterable[int]) -> list[int]:
        """The blocks left their last tables: those that are published stay, evictable; returns the others."""
        others: list[int] = []
        owners: set[str | None] = set()
        for block in blocks:
            entry = self._published.get(block)
            if entry is None:
                others.append(block)
            else:
                self._evictable[entry[1]][block] = None
                self._evictable_blocks += 1
                owners.add(entry[1])
        for owner in owners:
            self._reckon(owner)
        return others

    def revive(self, block: int) -> None:
        """An evictable block is in a table again."""
        owner = self._published[block][1]
        del self._evictable[owner][block]
        self._evictable_blocks -= 1
        self._reckon(owner)

    def evict(self, count: int) -> list[int]:
        """Take so many evictable blocks out of the cache: they hold nothing any more."""
        if count > self._evictable_blocks:
            raise InvariantError(
                f"{count} blocks are taken with {self._evictable_blocks} cached and none free"
            )
        evicted: list[int] = []
        for _ in range(count):
            owner = max(self._shares, key=self._shares.__getitem__) if self._shares else None
            block, _ = self._evictable[owner].popitem(last=False)
            del self._blocks[self._published.pop(block)[0]]
            self._reckon(owner)
            evicted.append(block)
        self._evictable_blocks -= count
        self.evicted_blocks += count
        return evicted

    def reset(self, weights_version: str) -> tuple[int, ...]:
        """Forget every content, for new weights; returns the blocks that were evictable and are free now."""
        freed = tuple(self.evictable())
        self._weights_version = weights_version
        self.resets += 1
        for held in (self._blocks, self._published, self._evictable, self._shares, self._scopes):
            held.clear()
        self.forget_expected()
        self._evictable_blocks = 0
        return freed

    # -- Parts -----------------------------------------------------------------------------------------------

    def _lengthen(self, chain: HashChain, count: int) -> None:
        """Compute the chain's digests up to ``count`` of them."""
        first, size = len(chain.digests), self._block_size
        words = array("Q", chain.tokens[first * size : count * size])
        if len(words) != (count - first) * size:
            raise InvariantError(f"block {count - 1} is not full: it has no digest")
        if chain.shared_blocks == first:
            while chain.shared_blocks < count and self._is_shared(chain.tokens, chain.shared_blocks):
                chain.shared_blocks += 1
        scopes = self._scope(None, chain.adapter), self._scope(chain.tenant, chain.adapter)
        content, width = words.tobytes(), size * words.itemsize
        digest = chain.digests[-1] if first else b""
        for place in range(first, count):
            start = (place - first) * width
            scope = scopes[place >= chain.shared_blocks]
            digest = hashlib.sha256(digest + scope + content[start : start + width]).digest()
            chain.digests.append(digest)

    def _is_shared(self, tokens: list[int], place: int) -> bool:
        """Whether the block ends inside a shared prefix; says nothing of what comes after the block."""
        end = (place + 1) * self._block_size
        return any(len(prefix) >= end and prefix[:end] == tokens[:end] for prefix in self._shared_prefixes)

    def _scope(self, salt: str | None, adapter: str) -> bytes:
        scope = self._scopes.get((salt, adapter))
        if scope is None:
            if len(self._scopes) >= MOST_SCOPES:
                self._scopes.clear()
            named = repr((salt, adapter, self._weights_version)).encode()
            scope = self._scopes[salt, adapter] = hashlib.sha256(named).digest()
        return scope

    def _reckon(self, owner: str | None) -> None:
        blocks = len(self._evictable.get(owner, ()))
        if not blocks:
            self._evictable.pop(owner, None)
            self._shares.pop(owner, None)
        elif owner is not None:
            self._shares[owner] = blocks / self._weights.get(owner, 1.0)

    def check(self) -> None:
        """Recount from scratch; raises InvariantError on the first difference."""
        if {digest: block for block, (digest, _, _) in self._published.items()} != self._blocks:
            raise InvariantError("the cache's map and its published blocks differ")
        evictable = Counter(self.evictable())
        if evictable.total() != self._evictable_blocks or any(n > 1 for n in evictable.values()):
            raise InvariantError("the evictable blocks are counted wrong")
        places = {block: place for place, block in enumerate(evictable)}
        for block, (_, owner, parent) in self._published.items():
            if parent is None:
                continue
            ancestor = self._blocks.get(parent)
            if ancestor is None:
                raise InvariantError(f"block {block} is cached without its ancestor")
            same_line = self._published[ancestor][1] == owner
            if ancestor in places and (
                block not in places or (same_line and places[block] > places[ancestor])
            ):
                raise InvariantError(f"block {ancestor} would be evicted before its child {block}")
