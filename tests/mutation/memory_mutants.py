"""Memory with one wrong line each: a decrement or a fence that is missing, and the test that must notice."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

MEMORY_WALK = "tests/simulation/test_memory_walk.py::test_long_walks_keep_every_block_and_every_byte"
SCHEDULER_WALK = "tests/simulation/test_preemption_walk.py::test_long_walks_end_with_the_right_answers"
LEDGER = "tests/engine/test_blocks.py"
HOST_POOL = "tests/engine/test_host_pool.py"
PREFIX_CACHE = "tests/engine/test_prefix_cache.py"
PREEMPTION = "tests/engine/test_preemption.py"
OVERCOMMIT = "tests/engine/test_overcommit.py"


def _blocks(name: str, right: str, wrong: str, test: str = MEMORY_WALK) -> Mutant:
    return Mutant(name, "engine/blocks.py", right, wrong, test)


def _pool(name: str, right: str, wrong: str, test: str = MEMORY_WALK) -> Mutant:
    return Mutant(name, "engine/block_pool.py", right, wrong, test)


def _cache(name: str, right: str, wrong: str, test: str = PREFIX_CACHE) -> Mutant:
    return Mutant(name, "engine/prefix_cache.py", right, wrong, test)


def _host(name: str, right: str, wrong: str, test: str = HOST_POOL) -> Mutant:
    return Mutant(name, "engine/host_pool.py", right, wrong, test)


def _victims(name: str, right: str, wrong: str, test: str = PREEMPTION) -> Mutant:
    return Mutant(name, "engine/preemption.py", right, wrong, test)


MEMORY_MUTANTS = (
    _pool(
        "a released block keeps its reference",
        "            self._references[block] -= 1\n            self._fences",
        "            self._fences",
    ),
    _pool(
        "a later fence is overwritten by an earlier one",
        "self._fences[block] = max(self._fences[block], fence)",
        "self._fences[block] = fence",
        LEDGER,
    ),
    _pool(
        "a released block is free at once",
        "if self._fences[block] > self._finished_step:",
        "if self._fences[block] < 0:",
    ),
    _pool(
        "a fence is passed one step early",
        "for block in self._limbo if self._fences[block] <= self._finished_step]",
        "for block in self._limbo if self._fences[block] <= self._finished_step + 1]",
    ),
    _blocks(
        "a step does not fence the blocks it touches",
        "            table.last_step = step\n        return table.blocks",
        "            pass\n        return table.blocks",
    ),
    _blocks(
        "the source of a fork's copy is not fenced",
        "        parent.last_step = max(parent.last_step, step)\n",
        "",
        LEDGER,
    ),
    _pool(
        "a swap pins nothing",
        "            self._pins[block] += 1\n            self.swapping_blocks += self._pins",
        "            self.swapping_blocks += self._pins",
    ),
    _blocks(
        "a complete swap keeps its blocks",
        "            self._release(hold.blocks, hold.last_step)\n",
        "",
    ),
    _blocks(
        "a swap is complete when its step is",
        "self._copied_step = max(self._copied_step, step if copied_step is None else copied_step)",
        "self._copied_step = max(self._copied_step, step)",
    ),
    _blocks(
        "a closed table keeps its reservation",
        "        self.reserved_blocks -= table.reserved_blocks\n        table.reserved_blocks = 0",
        "        table.reserved_blocks = 0",
    ),
    _blocks(
        "a taken block stays reserved",
        "            self.reserved_blocks -= promised\n",
        "",
    ),
    _pool(
        "a table is released first block first",
        "for block in reversed(blocks):",
        "for block in blocks:",
    ),
    _pool(
        "a hit leaves the block in limbo",
        "                if block in self._limbo:\n                    del self._limbo[block]",
        "                if block in self._limbo:\n                    pass",
    ),
    _blocks(
        "a hit does not count what it takes from the cache",
        "return max(0, blocks - len(prefix)) + revived <= self.available_blocks",
        "return max(0, blocks - len(prefix)) <= self.available_blocks",
    ),
    _blocks(
        "a half-computed block is published",
        "full = computed_tokens // self.block_size",
        "full = len(table.blocks)",
    ),
    _cache(
        "what follows a duplicate is published",
        "                return index\n",
        "                continue\n",
        MEMORY_WALK,
    ),
    _blocks(
        "KV of old weights is published",
        "if table.resets == self.cache.resets:",
        "if table.resets <= self.cache.resets:",
    ),
    _blocks(
        "a fork writes into its parent's partial block",
        "full = tokens // self.block_size\n",
        "full = -(-tokens // self.block_size)\n",
    ),
    _pool(
        "a block given to somebody else counts as a survivor",
        "if self._generations[block] != generation or not self.cache.is_published(block):",
        "if not self.cache.is_published(block):",
        HOST_POOL,
    ),
    _blocks(
        "blocks that a step still touches count as reclaimable",
        "        if table.last_step > passed:\n            return table.reserved_blocks\n",
        "",
        MEMORY_WALK,
    ),
    _blocks(
        "a table is one block too long",
        "            missing = self.blocks_for(tokens) - len(table.blocks)\n            promised",
        "            missing = self.blocks_for(tokens) - len(table.blocks) + 1\n            promised",
        LEDGER,
    ),
    _blocks(
        "a reservation beyond the pool is made", "if not self.can_open(blocks, prefix):", "if False:", LEDGER
    ),
    _cache(
        "a hit covers the whole prompt",
        "limit = (known_tokens - 1) // self._block_size\n        count",
        "limit = known_tokens // self._block_size\n        count",
    ),
    _cache("tenants share a salt", "repr((salt, adapter, self", "repr((None, adapter, self"),
    _cache("adapters share blocks", "repr((salt, adapter, self", "repr((salt, None, self"),
    _cache("weights share blocks", "adapter, self._weights_version))", "adapter))"),
    _cache(
        "a digest forgets what came before",
        "hashlib.sha256(digest + scope + content",
        "hashlib.sha256(scope + content",
    ),
    _cache(
        "an evicted block is still found",
        "        del self._blocks[self._published.pop(block)[0]]\n",
        "        self._published.pop(block)\n",
    ),
    _cache(
        "a revived block stays evictable",
        "        del self._evictable[owner][block]\n        self._evictable_blocks -= 1\n",
        "",
        MEMORY_WALK,
    ),
    _cache(
        "the tenant with the least gives way first",
        "owner = max(self._shares",
        "owner = min(self._shares",
    ),
    _cache(
        "duplicates are computed side by side",
        "return digest in self._expected or digest in self._under_way",
        "return False",
    ),
    _cache(
        "new weights keep the old map",
        "        for held in (self._blocks, self._published,",
        "        for held in (self._published,",
        MEMORY_WALK,
    ),
    _host(
        "a slot is free before its copy is complete",
        "            if step <= self._copied_step:\n                self._free",
        "            if step <= self._copied_step + 9:\n                self._free",
    ),
    _host(
        "slots of a dropped request are lost",
        "        self._leaving.append((parked.step, parked.slots))\n        self.complete",
        "        self.complete",
    ),
    _host("a request comes back before it is away", "return parked.step <= self._copied_step", "return True"),
    _host(
        "blocks being filled are not held",
        "        self._ledger.hold_open(table, fresh, step)\n",
        "",
    ),
    _host(
        "a step in flight does not stop a swap",
        "or self._ledger.is_fenced(table):",
        "or False:",
    ),
    _victims(
        "a set that does not free enough goes anyway",
        "        if not is_enough(chosen):\n            return ()\n",
        "",
    ),
    _victims(
        "a fenced request gives way",
        "and not self._ledger.is_fenced(table)",
        "",
    ),
    _victims(
        "a request gives way for ever",
        "return request.preemptions >= self.limits.max_preemptions",
        "return False",
    ),
    _victims(
        "equals displace each other", "spec.priority > above_priority", "spec.priority >= above_priority"
    ),
    _victims("costs do not choose the mode", "is_wanted = harm < recompute", "is_wanted = harm > recompute"),
    Mutant(
        "one more is not counted behind its place",
        "engine/overcommit.py",
        "self._after[place] + current)",
        "0.0)",
        OVERCOMMIT,
    ),
    Mutant(
        "a step computes on blocks that have not arrived",
        "engine/memory.py",
        "return request.table is not None and self.ledger.is_arriving(request.table)",
        "return False",
        SCHEDULER_WALK,
    ),
    Mutant(
        "a parked request that ends keeps its slots",
        "engine/memory.py",
        "            self.host.drop(request.parked)\n",
        "",
        SCHEDULER_WALK,
    ),
    Mutant(
        "a recomputed request still counts as computed",
        "engine/giving_way.py",
        "            request.computed_tokens = 0\n",
        "            pass\n",
        SCHEDULER_WALK,
    ),
    Mutant(
        "a swap that is carried twice is done after the first",
        "engine/shipments.py",
        "                self._carried[step] = plan.step\n",
        "                self._carried.setdefault(step, step)\n",
        "tests/engine/test_field_cases_memory.py",
    ),
    Mutant(
        "a branch writes into a block that was never copied",
        "engine/forks.py",
        "            self._shipments.copy(copy, step)\n",
        "            pass\n",
        SCHEDULER_WALK,
    ),
    Mutant(
        "a branch shares a prompt that is not computed",
        "engine/forks.py",
        "parent.table is None or parent.computed_tokens < parent.prompt_tokens:",
        "parent.table is None:",
        SCHEDULER_WALK,
    ),
    Mutant(
        "a branch shares blocks that are still being filled from the host",
        "engine/forks.py",
        "if self._ledger.is_arriving(parent.table) or ",
        "if ",
        "tests/engine/test_forks.py",
    ),
    Mutant(
        "a plan ahead forks off a prompt whose step may fail",
        "engine/planner.py",
        "if self._is_ahead and self._memory.forks.tokens(request):",
        "if False:",
        "tests/engine/test_forks.py",
    ),
    Mutant(
        "a copy for a branch is lost with its plan",
        "engine/shipments.py",
        "copies=self._across.after(after),",
        "copies=self._across.after(max(after, plan.step - 1)),",
        "tests/engine/test_forks.py",
    ),
    Mutant(
        "copies teach nothing",
        "engine/giving_way.py",
        "            self.costs.observe(time)\n",
        "            pass\n",
        "tests/engine/test_detours.py",
    ),
    Mutant(
        "anybody takes what others were swapped out for",
        "engine/memory.py",
        "        return max(0, available - self.fresh_blocks(self._claimant))\n",
        "        return available\n",
        "tests/engine/test_claims.py",
    ),
    Mutant(
        "a request waits for room that never comes",
        "engine/planner.py",
        "if request.deferred_steps >= MOST_DEFERRED_STEPS or not",
        "if not",
        "tests/engine/test_releases.py",
    ),
    Mutant(
        "a block comes back before its copy has arrived",
        "engine/host_cache.py",
        "            if not transfer.ticket.is_done:\n",
        "            if False:\n",
        "tests/engine/test_copy_bus.py",
    ),
)
