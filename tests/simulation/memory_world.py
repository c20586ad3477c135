"""Random lives of block tables on a tiny pool, with results and swaps that come late, and every byte checked.

The scripted runner holds real words (position and token) in its simulated blocks and host slots, executes a
plan only when its result is due, and does swaps later still. So a block given away, hit, swapped or copied at
the wrong moment shows as a wrong word. Letters in brackets are the field's invariants, B1 to B13.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import pytest

from headway.engine.block_table import BlockTable
from headway.engine.blocks import BlockLedger
from headway.engine.errors import InvariantError
from headway.engine.host_pool import HostPool, Parked
from headway.engine.prefix_cache import HashChain, PrefixCache
from headway.engine.scripted import ScriptedRunner
from headway.engine.values import Admitted, BlockCopy, Chunk, RequestKey, Sampling, StepPlan

SHARED_PREFIX: Final = (1, 1, 2)
PROMPTS: Final = ((1, 1, 2, 1, 2, 2, 1, 1), (1, 1, 2, 2, 1, 1, 2, 1, 2, 2), (2, 2, 1, 2, 1, 1))
LONGEST: Final = 16


@dataclass(eq=False)
class Life:
    """One request: what is known, what plans compute (``planned``), what was applied (``computed``)."""

    name: str
    tenant: str
    tokens: list[int]
    chain: HashChain
    table: BlockTable | None = None
    parked: Parked | None = None
    planned: int = 0
    computed: int = 0
    usable_from: int = 0
    """Not scheduled before the swaps of this step are complete."""
    turn: int = 0
    """Raised when it gives way: a chunk of an earlier turn is dropped."""


@dataclass
class InFlight:
    """A plan that the device has not finished."""

    plan: StepPlan
    turns: dict[str, int]
    touched: set[int] = field(default_factory=set[int])


class MemoryWorld:
    """One ledger, one host pool, one late device. ``act`` does one random thing and checks everything."""

    def __init__(
        self,
        rng: random.Random,
        *,
        block_count: int,
        block_size: int,
        slots: int,
        delay: int,
        copy_delay: int,
    ) -> None:
        self.rng = rng
        self.size = block_size
        self.cache = PrefixCache(block_size, weights_version="0", shared_prefixes=[SHARED_PREFIX])
        self.ledger = BlockLedger(block_count, block_size, self.cache)
        self.pool = HostPool(self.ledger, slots)
        self.runner = ScriptedRunner(
            block_count=block_count, block_size=block_size, host_slots=slots, copy_delay=copy_delay
        )
        self.delay = delay
        self.step = self.copied_step = self.count = self.resets = 0
        self.lives: dict[str, Life] = {}
        self.flying: list[InFlight] = []
        self.swaps_out: list[BlockCopy] = []
        self.swaps_in: list[BlockCopy] = []
        self.copies: list[BlockCopy] = []
        self.swapping: list[tuple[int, set[int], set[int]]] = []
        """Swaps under way: step, device blocks, host slots."""
        self.contents: dict[int, tuple[str, tuple[int, ...]]] = {}
        """What each published block must hold, and whose it is."""
        self.seen: Counter[str] = Counter()
        """How often something happened, so that a test can tell that it did."""

    def act(self) -> None:
        """One random operation, then everything is recounted."""
        names, weights = zip(*WEIGHTS.items(), strict=True)
        operation = self.rng.choices(names, weights)[0]
        operation(self)
        self.seen.update(limbo=self.ledger.limbo_blocks > 0, swapping=self.ledger.swapping_blocks > 0)
        self.check()

    # -- Requests come and go --------------------------------------------------------------------------------

    @property
    def running(self) -> list[Life]:
        return [life for life in self.lives.values() if life.table is not None]

    @property
    def usable(self) -> list[Life]:
        return [life for life in self.running if life.usable_from <= self.copied_step]

    def pick(self, lives: Sequence[Life]) -> Life | None:
        return self.rng.choice(lives) if lives else None

    def enter(self, tenant: str, tokens: list[int]) -> Life:
        self.count += 1
        life = Life(f"r{self.count}", tenant, tokens, self.cache.chain(tokens, tenant))
        self.lives[life.name] = life
        return life

    def add(self) -> None:
        if len(self.lives) < 8:
            prompt = self.rng.choice(PROMPTS)
            tokens = [*prompt[: self.rng.randint(1, len(prompt))], self.rng.randint(1, 2)]
            self.enter(self.rng.choice("ab"), tokens)

    def start(self) -> None:
        life = self.pick([w for w in self.lives.values() if w.table is None and w.parked is None])
        if life is None:
            return
        hits = self.cache.match(life.chain, len(life.tokens))
        self.check_hits(life, hits)
        blocks = self.rng.choice((0, self.ledger.blocks_for(len(life.tokens))))
        if not self.ledger.can_open(blocks, hits):
            self.refused(lambda: self.ledger.open_table(blocks, hits))
            return
        life.table = self.ledger.open_table(blocks, hits)
        life.planned = life.computed = len(hits) * self.size
        self.seen.update(
            start=1, hit=bool(hits), expected=self.cache.is_expected(life.chain, len(life.tokens))
        )

    def check_hits(self, life: Life, hits: tuple[int, ...]) -> None:
        """[B5, B6, B7] At most known - 1 tokens, computed already, the same ones, and of the same tenant."""
        assert len(hits) * self.size < len(life.tokens)
        shared = sum(
            tuple(life.tokens[:end]) == SHARED_PREFIX[:end] for end in range(self.size, 4, self.size)
        )
        for index, block in enumerate(hits):
            words = self.words(life, index * self.size, (index + 1) * self.size)
            assert self.runner.block(block) == words
            assert index < shared or self.contents[block][0] == life.tenant

    def cancel(self) -> None:
        life = self.pick(list(self.lives.values()))
        if life is not None:
            self.end(life)

    def end(self, life: Life) -> None:
        """[B9] Everything it has goes back, once."""
        table, parked = life.table, life.parked
        if table is not None:
            self.ledger.close_table(table)
            self.refused(lambda: self.ledger.close_table(table))
        if parked is not None:
            self.pool.drop(parked)
            self.refused(lambda: self.pool.drop(parked))
        del self.lives[life.name]

    def fork(self) -> None:
        parent = self.pick([life for life in self.usable if life.computed])
        if parent is None or parent.table is None or len(self.lives) >= 8:
            return
        tokens = self.rng.randint(1, parent.computed)
        blocks = self.ledger.blocks_for(tokens)
        if not self.ledger.can_open(blocks, parent.table.blocks[: tokens // self.size]):
            return
        child = self.enter(parent.tenant, [*parent.tokens[:tokens], self.rng.randint(1, 2)])
        child.table, copy = self.ledger.fork_table(parent.table, tokens, blocks, self.step + 1)
        child.planned = child.computed = tokens
        self.check_fresh(child.table.blocks[tokens // self.size :])
        assert (copy is None) == (tokens % self.size == 0)
        self.copies += [] if copy is None else [copy]
        self.seen.update(fork=1, copy=copy is not None)

    # -- Giving way ------------------------------------------------------------------------------------------

    def recompute(self) -> None:
        life = self.pick(self.running)
        if life is None or life.table is None:
            return
        reclaimed = self.ledger.reclaimable_blocks([life.table])
        before = self.ledger.available_blocks
        self.ledger.close_table(life.table)
        # What is promised of a victim comes back at once.
        assert self.ledger.available_blocks == before + reclaimed
        life.table, life.planned, life.computed, life.usable_from = None, 0, 0, 0
        life.turn += 1

    def swap_out(self) -> None:
        life = self.pick(self.usable)
        if life is None or life.table is None:
            return
        table = life.table
        if not self.pool.can_swap_out(life.computed) or self.ledger.is_fenced(table):
            self.refused(lambda: self.pool.swap_out(table, life.computed, self.step + 1))
            return
        blocks = set(table.blocks)
        life.parked, copies = self.pool.swap_out(table, life.computed, self.step + 1)
        slots = set(life.parked.slots)
        assert not any(slots & touched for _, _, touched in self.swapping)
        self.swapping.append((self.step + 1, blocks, slots))
        self.swaps_out += copies
        life.table, life.planned = None, life.computed
        life.turn += 1
        self.seen["swap out"] += 1

    def swap_in(self) -> None:
        life = self.pick([life for life in self.lives.values() if life.parked is not None])
        if life is None or life.parked is None:
            return
        parked = life.parked
        blocks = self.ledger.blocks_for(parked.tokens) + self.rng.randint(0, 1)
        if not self.pool.can_swap_in(parked, blocks):
            self.refused(lambda: self.pool.swap_in(parked, blocks, self.step + 1))
            return
        life.table, copies = self.pool.swap_in(parked, blocks, self.step + 1)
        fresh = {copy.target for copy in copies}
        self.check_fresh(tuple(fresh))
        self.swapping.append((self.step + 1, fresh, set(parked.slots)))
        self.swaps_in += copies
        life.parked, life.usable_from = None, self.step + 1
        self.seen.update(**{"swap in": 1, "survivor": len(fresh) < len(parked.slots)})

    # -- Steps -----------------------------------------------------------------------------------------------

    def plan(self) -> None:
        self.cache.forget_expected()
        chunks: list[Chunk] = []
        for life in self.usable:
            tokens = self.rng.randint(0, len(life.tokens) - life.planned)
            if tokens and life.table is not None:
                blocks = self.ledger.blocks_for(life.planned + tokens)
                missing = blocks - len(life.table.blocks) - life.table.reserved_blocks
                if missing > max(0, self.ledger.available_blocks):
                    self.seen["short"] += 1
                else:
                    self.cache.expect(life.chain, life.planned)
                    chunks.append(self.chunk(life, life.table, tokens))
        self.send(chunks)
        while len(self.flying) > self.delay:
            self.deliver()

    def chunk(self, life: Life, table: BlockTable, tokens: int) -> Chunk:
        before, end = table.blocks, life.planned + tokens
        blocks = self.ledger.extend(table, end, self.step + 1)
        self.check_fresh(blocks[len(before) :])
        # [B4] Exactly as long as it has to be, or longer because it grew before.
        assert len(blocks) == max(len(before), -(-end // self.size))
        assert blocks[: len(before)] == before
        # [B3] What is written is in this table alone and published to nobody.
        for block in blocks[life.planned // self.size : -(-end // self.size)]:
            assert [w for w in self.running if w.table is not None and block in w.table.blocks] == [life]
            assert not self.cache.is_published(block)
        fresh = tuple(life.tokens[life.planned : end])
        start, life.planned = life.planned, end
        return Chunk(RequestKey(life.name, 0), start, fresh, blocks, samples=False)

    def send(self, chunks: list[Chunk]) -> None:
        self.step += 1
        self.seen.update(steps=1, chunks=len(chunks))
        plan = StepPlan(
            self.step,
            tuple(chunks),
            admitted=tuple(Admitted(chunk.key, (1,), (), Sampling()) for chunk in chunks),
            copies=tuple(self.copies),
            swaps_out=tuple(self.swaps_out),
            swaps_in=tuple(self.swaps_in),
        )
        touched = {block for chunk in chunks for block in chunk.block_table}
        touched |= {block for copy in self.copies for block in (copy.source, copy.target)}
        turns = {chunk.key.request_id: self.lives[chunk.key.request_id].turn for chunk in chunks}
        self.flying.append(InFlight(plan, turns, touched))
        self.copies, self.swaps_out, self.swaps_in = [], [], []

    def deliver(self) -> None:
        if not self.flying:
            return
        flight = self.flying.pop(0)
        result = self.runner.execute(flight.plan)
        assert result.copied_step is not None
        self.copied_step = max(self.copied_step, result.copied_step)
        self.ledger.complete(flight.plan.step, result.copied_step)
        self.pool.complete(result.copied_step)
        self.swapping = [swap for swap in self.swapping if swap[0] > self.copied_step]
        for chunk in flight.plan.chunks:
            life = self.lives.get(chunk.key.request_id)
            if life is not None and life.turn == flight.turns[life.name] and life.table is not None:
                self.commit(life, life.table, chunk.start + len(chunk.token_ids))

    def commit(self, life: Life, table: BlockTable, computed: int) -> None:
        life.computed = computed
        known = {block for block in table.blocks if self.cache.is_published(block)}
        self.ledger.publish(table, life.chain, computed)
        for index, block in enumerate(table.blocks):
            if self.cache.is_published(block) and block not in known:
                words = self.words(life, index * self.size, (index + 1) * self.size)
                self.contents[block] = (life.tenant, words)
        if computed == len(life.tokens):
            if computed >= LONGEST:
                self.end(life)
            else:
                life.tokens.append(self.rng.randint(1, 2))

    def weigh(self) -> None:
        self.cache.set_weight(self.rng.choice("ab"), self.rng.choice((0.5, 1.0, 4.0)))

    def reset(self) -> None:
        """[B13] New weights: nothing of the old is hit again, running requests publish no more."""
        self.resets += 1
        self.ledger.reset_cache(str(self.resets))
        self.contents.clear()
        assert self.ledger.cached_blocks == 0
        assert all(self.cache.match(life.chain, len(life.tokens)) == () for life in self.lives.values())

    # -- What must hold --------------------------------------------------------------------------------------

    def words(self, life: Life, start: int, end: int) -> tuple[int, ...]:
        return tuple(position << 32 | life.tokens[position] for position in range(start, end))

    def refused(self, operation: Callable[[], object]) -> None:
        """[B10] What cannot be done raises and changes nothing."""
        before = self.counts()
        with pytest.raises(InvariantError):
            operation()
        assert self.counts() == before

    def counts(self) -> tuple[int, ...]:
        ledger = self.ledger
        places = (ledger.free_blocks, ledger.cached_blocks, ledger.used_blocks, ledger.limbo_blocks)
        return (*places, ledger.swapping_blocks, ledger.reserved_blocks, self.pool.free_slots)

    def check_fresh(self, blocks: tuple[int, ...]) -> None:
        """[B12] A block that is taken is touched by no step in flight and by no swap under way."""
        assert not any(flight.touched & set(blocks) for flight in self.flying)
        assert not any(touched & set(blocks) for _, touched, _ in self.swapping)

    def check(self) -> None:
        """[B1, B2, B8] by recount, [B5, B11] by the bytes."""
        ledger = self.ledger
        ledger.check([life.table for life in self.running if life.table is not None])
        self.pool.check([life.parked for life in self.lives.values() if life.parked is not None])
        assert sum(self.counts()[:5]) == ledger.block_count
        tables = {block for life in self.running if life.table is not None for block in life.table.blocks}
        assert len(tables) == ledger.used_blocks
        self.contents = {b: held for b, held in self.contents.items() if self.cache.is_published(b)}
        for block, (_, words) in self.contents.items():
            assert self.runner.block(block) == words
        under_way = {copy.target for flight in self.flying for copy in flight.plan.copies}
        under_way |= {copy.target for copy in self.copies}
        for life in self.usable:
            blocks = () if life.table is None else life.table.blocks
            if not under_way & set(blocks):
                held = [word for block in blocks for word in self.runner.block(block)]
                assert tuple(held[: life.computed]) == self.words(life, 0, life.computed)

    def finish(self) -> None:
        """[B1, B9, B13] At the end everything comes back, from every tier."""
        self.send([])
        while self.flying:
            self.deliver()
            self.check()
        for life in list(self.lives.values()):
            self.end(life)
        self.check()
        ledger = self.ledger
        assert (ledger.used_blocks, ledger.limbo_blocks, ledger.swapping_blocks) == (0, 0, 0)
        assert self.pool.free_slots == self.pool.slot_count
        ledger.reset_cache("last")
        assert ledger.free_blocks == ledger.block_count


# Giving way often enough that a full pool does not stand still.
WEIGHTS: Final[dict[Callable[[MemoryWorld], None], float]] = {
    MemoryWorld.add: 4,
    MemoryWorld.start: 6,
    MemoryWorld.plan: 12,
    MemoryWorld.deliver: 3,
    MemoryWorld.fork: 1,
    MemoryWorld.recompute: 4,
    MemoryWorld.swap_out: 3,
    MemoryWorld.swap_in: 4,
    MemoryWorld.cancel: 2,
    MemoryWorld.weigh: 0.3,
    MemoryWorld.reset: 0.1,
}
