"""Which waiting requests start in a step, and who gives way for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from headway.engine.limits import StepLimits
from headway.engine.memory import Memory
from headway.engine.policy import Policy
from headway.engine.preemption import Candidate, Preemption
from headway.engine.request import Request
from headway.engine.shares import floor_chunk, promise

TURNS: Final = 8
"""One more than a step holds may run for each so many that it holds."""


@dataclass(slots=True)
class Admission:
    """What became of the waiting requests of one step, in the making."""

    policy: Policy
    memory: Memory
    limits: StepLimits
    active: list[Request]
    """The running requests of the step, changed when one gives way."""
    running: Mapping[str, Request]
    """All that have their blocks, also those left out of the step."""
    prefills: list[Request]
    """Those of them in the middle of their prefill."""
    budget: int
    """Prefill tokens of the step."""
    start: Callable[[Request], None]
    """Starts a request: gives it its blocks and moves it to the running ones."""
    give_way: Callable[[Preemption], None]
    postpone: Callable[[Request, tuple[Preemption, ...], int, int], bool]
    """Whether a request rather waits for so many blocks and places to come free than that others give way."""
    candidate: Callable[[Request], Candidate]
    """A running request as one that may give way."""
    started: list[Request] = field(default_factory=list[Request])

    def run(self, now: float) -> list[Request]:
        """Start what may start now, in the policy's order, and return it.

        - A start never takes the floor chunk from a prefill that has started, and waits while short prompts
          that have started fill the step: they end sooner one after the other than side by side.
        - Bounded skipping: a request whose blocks do not fit lets those behind it pass, at most
          ``max_passes`` times; from then on nothing behind it starts while anything runs, so blocks come free
          until it fits. While nothing can run (held requests sit on the blocks) waiting would not help:
          others may still pass.
        - A request whose next block this step computes for another waits for it, without losing its turn.
        - Where a better class finds no room, lower ones give way; then nobody else starts in this step.
        """
        if self.budget < 1:
            return self.started
        floor = floor_chunk(self.budget, self.limits.min_chunk_tokens)
        promised = sum([promise(r.pending_tokens, self.budget, floor) for r in self.prefills])
        passed: list[Request] = []
        for request in self.policy.candidates(now, self.memory.cached_tokens):
            wanted = request.known_tokens - self.memory.cached_tokens(request)
            if promised and promised + min(floor, wanted) > self.budget:
                break
            if self.memory.is_expected(request):
                continue
            if not (self._has_place or self._may_take_turns(request)):
                self._displace(request, sequences=1)
                break
            if self.memory.has_room(request, self.active + self.started):
                self._start(request, passed)
                promised += promise(wanted, self.budget, floor)
            elif self._displace(request, sequences=0):
                break
            else:
                passed.append(request)
            if self._is_barrier(passed):
                break
        return self.started

    @property
    def _has_place(self) -> bool:
        """Whether the step has room for one more sequence."""
        return len(self.active) + len(self.started) < self.limits.max_sequences

    def _may_take_turns(self, request: Request) -> bool:
        """Whether it may run beside as many as a step holds: then some of them are left out in turns.

        For a tenant with less than its share of the running requests. Otherwise it would wait until an answer
        ends of those who have more than theirs. A better class never gives turns to a lower one.
        """
        most = self.limits.max_sequences + self.limits.max_sequences // TURNS
        running = [other.spec for other in self.running.values() if not other.is_held]
        spec = request.spec
        if len(running) >= most or any(other.priority < spec.priority for other in running):
            return False
        peers = [other.tenant for other in running if other.priority == spec.priority]
        return 1 + peers.count(spec.tenant) <= len(peers) * self.policy.share(request)

    def _start(self, request: Request, passed: list[Request]) -> None:
        self.start(request)
        if self._has_place:
            self.memory.expect_more(request)
        self.started.append(request)
        for earlier in passed:
            earlier.passes += 1

    def _is_barrier(self, passed: list[Request]) -> bool:
        something_runs = bool(self.active or self.started)
        return something_runs and (
            len(passed) >= self.limits.max_looks
            or any(earlier.passes >= self.limits.max_passes for earlier in passed)
        )

    def _displace(self, request: Request, sequences: int) -> bool:
        """Let lower classes give way for a request; whether that happened, or is happening already."""
        if not self.policy.has_classes or self.started or not self.memory.is_settled(request):
            return False
        blocks = self.memory.fresh_blocks(request) - self.memory.spare_blocks(request)
        if 0 < blocks <= self.memory.coming_blocks:
            return True
        priority = request.spec.priority
        # A place is only had by who is in the step; blocks also by who is on hold or left out of it.
        holders = self.active if sequences else self.running.values()
        lower = [r for r in holders if r.spec.priority > priority and not r.is_pinned]
        if not lower:
            return False
        victims = self.memory.giving_way.choose(
            [self.candidate(other) for other in lower],
            max(0, blocks),
            sequences=sequences,
            kept=set(self.memory.found_blocks(request)),
            above_priority=priority,
        )
        if victims and self.postpone(request, victims, max(0, blocks), sequences):
            return True
        for victim in victims:
            self.give_way(victim)
        self.active[:] = [other for other in self.active if other.table is not None]
        if victims and self.memory.fits(request):
            self._start(request, [])
        elif victims:
            self.memory.claim(request)
        return bool(victims)
