"""Batch requests stand back while somebody waits for a first token, and leave steps short for who comes next.

The scheduler gives a better class its tokens first, but every step also holds the batch's decodes, and who
comes waits for the end of the step under way. So, where others were here lately:

    a first token is awaited,     batch requests are held: their blocks stay, they are in no step
      or was a moment ago
    otherwise                     few of them compute, in steps so short that who comes finds their end soon

For two seconds at most in a row no batch request gets a token, then none is held for a moment: no batch
stands still, also where those that may compute cannot (their blocks are others').
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from headway.engine.limits import StepLimits
from headway.engine.values import RequestSpec
from headway.services.translate import BAND

BATCH_BAND: Final = max(BAND.values())
"""The lowest class."""
LATELY_SECONDS: Final = 10.0
LONGEST_SECONDS: Final = 2.0
REST_SECONDS: Final = 0.1
AFTER_SECONDS: Final = 0.05
"""After a first token they are held on: people come in bursts, and each would meet a batch's step again."""
PLACES_PART: Final = 4
"""One in so many of a step's places is for batch requests where others were here lately."""
SHORT_STEP_SECONDS: Final = 0.01
"""Of a step that batch requests share with nobody, or with answers that have begun."""
SHORT_CHUNK_TOKENS: Final = 8
"""The least piece of a prompt in such a step: the usual 32 tokens alone take longer than it may."""


@dataclass(frozen=True, slots=True)
class Change:
    """What is different from the next step on."""

    held: tuple[str, ...] = ()
    freed: tuple[str, ...] = ()
    limits: StepLimits | None = None
    """None: as they are."""


@dataclass(slots=True)
class StandingBack:
    """Owned by the engine's thread, told of what comes, gets tokens and goes. Times: monotonic seconds."""

    limits: StepLimits
    """Those that the operator set."""
    _batch: dict[str, None] = field(default_factory=dict[str, None])
    _awaited: set[str] = field(default_factory=set[str])
    """Requests of better classes that have no token yet."""
    _after_until: float = float("-inf")
    """Batch requests are held until then though no first token is awaited."""
    _was_awaited: bool = False
    """When the last step began."""
    _held: dict[str, None] = field(default_factory=dict[str, None])
    """Live requests only: whoever asks whether anybody is held asks whether there is somebody to free."""
    _moved: bool = False
    """Whether a batch request got a token since the last step began."""
    _stands_since: float = 0.0
    """Since when somebody is held and no batch request has got a token, without a rest."""
    _rests_until: float = float("-inf")
    _others_at: float = float("-inf")
    _is_short: bool = False

    def opened(self, spec: RequestSpec, now: float) -> None:
        """A request was added; it may take the place of an older one of its name."""
        self._held.pop(spec.request_id, None)
        if spec.priority >= BATCH_BAND:
            self._batch[spec.request_id] = None
        else:
            self._awaited.add(spec.request_id)
            self._others_at = now

    def answered(self, request: str) -> None:
        """It has a token."""
        self._awaited.discard(request)
        self._moved = self._moved or request in self._batch

    def closed(self, request: str) -> None:
        """It ended."""
        self._awaited.discard(request)
        self._batch.pop(request, None)
        self._held.pop(request, None)

    @property
    def is_holding(self) -> bool:
        """Whether anybody is held."""
        return bool(self._held)

    def holds(self, request: str) -> bool:
        """Whether it must not go on now, whatever its reader does."""
        return request in self._held

    def begin(self, now: float) -> Change:
        """What the step that begins now is to have."""
        if self._was_awaited and not self._awaited:
            self._after_until = now + AFTER_SECONDS
        self._was_awaited = bool(self._awaited)
        if self._moved or not self._held:
            self._moved, self._stands_since = False, now
        elif now - self._stands_since >= LONGEST_SECONDS:
            self._rest(now)
        wanted = dict.fromkeys(self._wanted(now))
        held = tuple(each for each in wanted if each not in self._held)
        freed = tuple(each for each in self._held if each not in wanted)
        self._held = wanted
        return Change(held, freed, self._limits(now, is_short=len(wanted) < len(self._batch)))

    def stands(self, now: float) -> None:
        """There was no step: those for whom others are held cannot run, or have ended."""
        if now < self._after_until:
            self._after_until = now
        else:
            self._rest(now)

    def _rest(self, now: float) -> None:
        """Nobody is held from the next step on, for a moment."""
        self._rests_until = now + REST_SECONDS

    def _wanted(self, now: float) -> Iterable[str]:
        """Who is to be held."""
        if now < self._rests_until:
            return ()
        if self._awaited or now < self._after_until:
            return self._batch
        if now - self._others_at < LATELY_SECONDS:
            return islice(self._batch, max(1, self.limits.max_sequences // PLACES_PART), None)
        return ()

    def _limits(self, now: float, *, is_short: bool) -> StepLimits | None:
        is_short = is_short and now - self._others_at < LATELY_SECONDS
        if is_short == self._is_short:
            return None
        self._is_short = is_short
        if not is_short:
            return self.limits
        return replace(
            self.limits,
            min_chunk_tokens=min(self.limits.min_chunk_tokens, SHORT_CHUNK_TOKENS),
            max_gap_seconds=min(self.limits.max_gap_seconds, SHORT_STEP_SECONDS),
            max_step_seconds=max(
                self.limits.min_step_seconds, min(self.limits.max_step_seconds, SHORT_STEP_SECONDS)
            ),
        )
