"""Who may hit what, who gives way first, and who waits for whom."""

from __future__ import annotations

import pytest

from headway.engine.block_table import BlockTable
from headway.engine.blocks import BlockLedger
from headway.engine.prefix_cache import HashChain, PrefixCache

PROMPT = [5, 6, 7, 8, 9, 10, 11]


def make_ledger(
    blocks: int = 12, size: int = 2, *, version: str = "", shared: tuple[int, ...] = ()
) -> BlockLedger:
    cache = PrefixCache(size, weights_version=version, shared_prefixes=[shared] if shared else ())
    return BlockLedger(blocks, size, cache)


def computed(
    ledger: BlockLedger, tokens: list[int], tenant: str = "a", adapter: str = ""
) -> tuple[BlockTable, HashChain]:
    """A table whose tokens are all computed and published."""
    chain = ledger.cache.chain(tokens, tenant, adapter)
    table = ledger.open_table(0, ledger.cache.match(chain, len(tokens)))
    ledger.extend(table, len(tokens))
    ledger.publish(table, chain, len(tokens))
    return table, chain


def hits(ledger: BlockLedger, tokens: list[int], tenant: str = "a", adapter: str = "") -> int:
    return len(ledger.cache.match(ledger.cache.chain(tokens, tenant, adapter), len(tokens)))


def test_a_hit_covers_full_blocks_and_leaves_the_last_token_to_compute() -> None:
    ledger = make_ledger()
    computed(ledger, PROMPT)
    assert hits(ledger, PROMPT) == 3
    assert hits(ledger, PROMPT[:6]) == 2, "six tokens are three blocks, but the last token must be computed"
    assert hits(ledger, [*PROMPT[:4], 0, 0, 0]) == 2
    assert hits(ledger, [0, *PROMPT[1:]]) == 0, "what comes later counts only after what comes before"


def test_case_38_nobody_hits_what_another_tenant_computed() -> None:
    ledger = make_ledger()
    computed(ledger, PROMPT, "a")
    assert hits(ledger, PROMPT, "b") == 0
    assert hits(ledger, PROMPT, "a") == 3, "with caching off the line above would prove nothing"


def test_another_adapter_or_other_weights_share_nothing() -> None:
    ledger = make_ledger(version="1")
    computed(ledger, PROMPT)
    assert hits(ledger, PROMPT, adapter="x") == 0
    ledger.reset_cache("2")
    assert hits(ledger, PROMPT) == 0
    digests = {
        PrefixCache(2, weights_version=version).digest(HashChain(PROMPT, "a", adapter), 0)
        for version in ("1", "2")
        for adapter in ("", "x")
    }
    assert len(digests) == 4


def test_a_prefix_that_the_operator_allows_is_shared_and_only_that() -> None:
    ledger = make_ledger(shared=(5, 6, 7, 8, 9))
    computed(ledger, PROMPT, "a")
    assert hits(ledger, PROMPT, "b") == 2, "two blocks lie inside the shared prefix, the third does not"
    assert hits(ledger, PROMPT, "a") == 3


def test_whether_a_block_is_shared_does_not_depend_on_what_comes_after_it() -> None:
    cache = PrefixCache(2, shared_prefixes=[(5, 6, 7, 8)])
    growing = [5, 6]
    early = cache.digest(cache.chain(growing, "a"), 0)
    growing += [7, 8]
    assert cache.digest(cache.chain(growing, "b"), 0) == early


def test_case_27_a_block_is_hit_only_once_its_step_was_applied() -> None:
    ledger = make_ledger()
    chain = ledger.cache.chain(PROMPT, "a")
    table = ledger.open_table(0)
    ledger.extend(table, len(PROMPT), step=1)
    assert hits(ledger, PROMPT) == 0, "planned is not computed"
    ledger.complete(1)
    ledger.publish(table, chain, 3)
    assert hits(ledger, PROMPT) == 1, "only the full block among three computed tokens"


def test_case_19_a_duplicate_stays_private_and_so_does_what_follows_it() -> None:
    ledger = make_ledger()
    first, _ = computed(ledger, PROMPT[:3])
    second = ledger.open_table(0)
    chain = ledger.cache.chain(list(PROMPT), "a")
    ledger.extend(second, 7)
    ledger.publish(second, chain, 7)
    assert hits(ledger, PROMPT) == 1, (
        "the second block would outlive its ancestor, which the first table holds"
    )
    ledger.close_table(first)
    ledger.check([second])
    assert not set(second.blocks) & {block for block in range(12) if ledger.cache.is_evictable(block)}


def test_evicting_starts_at_the_end_of_a_chain() -> None:
    ledger = make_ledger(blocks=3)
    table, _ = computed(ledger, PROMPT[:6])
    ledger.close_table(table)
    taker = ledger.open_table(0)
    for left in (2, 1, 0):
        ledger.extend(taker, 2 * (3 - left))
        ledger.check([taker])
        assert hits(ledger, PROMPT) == left


def test_a_swap_that_held_the_head_of_a_chain_lets_it_go_after_the_tail() -> None:
    ledger = make_ledger()
    table, chain = computed(ledger, PROMPT[:4])
    ledger.extend(table, 4, step=2)
    swapped = ledger.open_table(0, ledger.cache.match(chain, 3))
    ledger.hold_closed(swapped, 2)
    ledger.close_table(table)
    ledger.check([])
    ledger.complete(2)
    assert ledger.cached_blocks == 2
    ledger.check([])


def test_equal_blocks_after_different_ones_are_different() -> None:
    ledger = make_ledger()
    computed(ledger, [1, 2, 7, 8])
    second, _ = computed(ledger, [3, 4, 7, 8])
    assert ledger.cache.match(ledger.cache.chain([3, 4, 7, 8, 9], "a"), 5) == second.blocks


def test_eviction_takes_from_the_tenant_most_above_its_share() -> None:
    ledger = make_ledger(blocks=8, size=1)
    ledger.cache.set_weight("heavy", 3.0)
    for tenant, tokens in (("heavy", [1, 2, 3, 4, 5]), ("light", [1, 2, 3])):
        ledger.close_table(computed(ledger, tokens, tenant)[0])
    taker = ledger.open_table(0)
    ledger.extend(taker, 1)
    assert ledger.cache.match(ledger.cache.chain([1, 2, 3, 0], "light"), 4) != ()
    assert (hits(ledger, [1, 2, 3, 4, 5, 0], "heavy"), hits(ledger, [1, 2, 3, 0], "light")) == (5, 2)
    ledger.cache.set_weight("heavy", 1.0)
    ledger.extend(taker, 2)
    assert (hits(ledger, [1, 2, 3, 4, 5, 0], "heavy"), hits(ledger, [1, 2, 3, 0], "light")) == (4, 2)


def test_shared_prefixes_are_evicted_last() -> None:
    ledger = make_ledger(blocks=4, size=1, shared=(1, 2))
    ledger.close_table(computed(ledger, [1, 2, 3, 4], "a")[0])
    ledger.extend(ledger.open_table(0), 2)
    assert hits(ledger, [1, 2, 9], "anyone") == 2


def test_a_request_waits_for_whoever_computes_its_next_block_and_for_nobody_else() -> None:
    ledger = make_ledger()
    cache = ledger.cache
    leader, follower, stranger = (cache.chain(list(PROMPT), tenant) for tenant in ("a", "a", "b"))
    cache.expect(leader, 0)
    assert cache.is_expected(follower, len(PROMPT))
    assert not cache.is_expected(stranger, len(PROMPT))
    assert not cache.is_expected(cache.chain([5, 6], "a"), 2), (
        "it would hit nothing: its last token is its own"
    )
    cache.forget_expected()
    assert not cache.is_expected(follower, len(PROMPT)), "nobody is waited for twice without a reason"


def test_a_cache_that_is_off_holds_nothing() -> None:
    ledger = BlockLedger(4, 2)
    table, _ = computed(ledger, PROMPT)
    assert hits(ledger, PROMPT) == 0
    ledger.close_table(table)
    assert (ledger.free_blocks, ledger.cached_blocks) == (4, 0)


@pytest.mark.parametrize("known", [1, 2, 3])
def test_case_16_a_prompt_at_a_block_border_hits_and_still_computes_a_token(known: int) -> None:
    ledger = make_ledger()
    computed(ledger, PROMPT)
    assert hits(ledger, PROMPT[: 2 * known]) == known - 1
    assert hits(ledger, PROMPT[: 2 * known + 1]) == known
