"""Which guesses a step computes beside the tokens that it must: as many as make the most tokens per second.

    N decodes                   N tokens in T(N) seconds
    and the k best guesses      N + p₁ + … + pₖ tokens in T(N + k) seconds

The guesses that are likeliest to come true go first, whosesoever they are (SmartSpec, arXiv 2406.14066, whose
goodput this is). p is learned for each request (``acceptance.py``), T from the steps (``verify_cost.py``).
Prefills go before guesses: these get what a step has left of its tokens and its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from headway.engine.acceptance import Acceptance
from headway.engine.budget import StepBudget
from headway.engine.cost_model import CostModel, StepShape, shape_of
from headway.engine.drafting import Drafting
from headway.engine.errors import InvariantError
from headway.engine.flights import Flight
from headway.engine.memory import Memory
from headway.engine.prompt_lookup import Guess
from headway.engine.request import Request
from headway.engine.verify_cost import VerifyCost

FIRST_PRICE: Final = 1 / 16
"""Of a guess, in plain steps, before any was timed: about what steps that wait for memory showed."""
LEAST_GAIN: Final = 1.03
"""Tokens per second that guesses must promise over those without: less is nothing but noise."""
GAIN_SHARE: Final = 1 / 16
"""Weight of the newest step in the tracked gain."""
FIRST_GAIN: Final = 1.2
LEAST_REST: Final = 64
MOST_REST: Final = 4096
PROBE_STEPS: Final = 512
"""After so many quiet steps guesses are tried at the first price: what they were seen to cost may be over."""
TRIED_ROWS: Final = (1, 2, 4, 8)
"""Guesses that a step is reckoned with before anything is looked up."""

Drafts = Mapping[Request, tuple[int, ...]]
NO_DRAFTS: Final[Drafts] = {}


class _Offer(NamedTuple):
    """One guessed token. Sorts by its chance, best first; one request's stay in their order."""

    doubt: float
    """How likely it is that it, or one before it, is wrong."""
    place: int
    serial: int
    request: Request
    guess: Guess


class Speculation:
    """Chooses guesses for decodes, and learns what becomes of them. Owns ``Request.drafting``."""

    def __init__(self, memory: Memory, cost: CostModel, *, max_draft_tokens: int) -> None:
        self._memory = memory
        self._cost = cost
        self._verify = VerifyCost(cost.verify)
        self._most = max_draft_tokens
        self._everyone = Acceptance()
        self._resting_steps = 0
        self._quiet_steps = 0
        """In a row in which no guess was worth it."""
        self._next_rest = LEAST_REST
        self.gain = FIRST_GAIN
        """Tokens per second of steps with guesses over what the same steps bring without, lately."""
        self.draft_tokens = 0
        """Guesses that were computed."""
        self.right_tokens = 0
        """Of those, the right ones."""

    def choose(self, scheduled: Sequence[tuple[Request, int]], budget: StepBudget) -> Drafts:
        """Guesses for the decodes of a step, within what its budget and the memory have left."""
        if self._resting_steps:
            self._resting_steps -= 1
            return NO_DRAFTS
        decodes = [request for request, tokens in scheduled if request.pending_tokens == tokens == 1]
        room = min(budget.tokens, self._most * len(decodes))
        if room < 1:
            return NO_DRAFTS
        reckoning = self._reckoning(decodes)
        # Even if all came true they may not be worth looking for.
        best = max([reckoning.gain(count, float(count)) for count in TRIED_ROWS if count <= room])
        drafts: Drafts = NO_DRAFTS
        if best >= LEAST_GAIN:
            offers = sorted(self._offers(decodes))[:room]
            drafts = _drafts(offers[: self._count(offers, reckoning, budget.seconds)])
        self._quiet_steps = 0 if drafts else self._quiet_steps + 1
        return drafts

    def learn(self, flight: Flight, seconds: float) -> None:
        """A step landed that took so long: what was right, and whether it paid."""
        for request, start in zip(flight.requests, flight.starts, strict=True):
            if request.drafting is not None and request.key in flight.sampled:
                request.drafting.learn(start + 1, flight.sampled[request.key])
        shape = flight.shape
        if seconds and not shape.prefill_work:
            self._verify.observe(shape, seconds)
        if any(flight.drafts):
            drafted = [place for place, drafts in enumerate(flight.drafts) if drafts]
            self.draft_tokens += sum(flight.drafts)
            self.right_tokens += sum([flight.tokens[place] - 1 for place in drafted])
        if shape.has_drafts:
            self._weigh(flight, seconds)

    def load(self) -> dict[str, float]:
        """Counts for metrics."""
        return {
            "draft_tokens": float(self.draft_tokens),
            "draft_tokens_right": float(self.right_tokens),
            "speculation_gain": self.gain,
        }

    def _weigh(self, flight: Flight, seconds: float) -> None:
        """Where steps with guesses lose, guessing rests, each time for longer."""
        plain = self._cost.decode.predict(shape_of([(start, 1) for start in flight.starts]))
        if not (self._cost.decode.is_trusted and plain and seconds):
            return
        self.gain += GAIN_SHARE * (sum(flight.tokens) * plain / (len(flight.starts) * seconds) - self.gain)
        if self.gain < 1.0:
            self._resting_steps, self._next_rest = self._next_rest, min(MOST_REST, 2 * self._next_rest)
            self.gain = FIRST_GAIN
        elif self.gain > FIRST_GAIN:
            self._next_rest = LEAST_REST

    def _reckoning(self, decodes: Sequence[Request]) -> _Reckoning:
        context = sum([request.computed_tokens + 1 for request in decodes])
        is_known = self._verify.is_known and self._quiet_steps < PROBE_STEPS
        plain = (
            self._verify.predict(len(decodes), context)
            if is_known
            else self._cost.decode.predict(StepShape(len(decodes), context, 0.0))
        )
        return _Reckoning(self._verify if is_known else None, plain or 1.0, len(decodes), context)

    def _count(self, offers: Sequence[_Offer], reckoning: _Reckoning, seconds: float) -> int:
        """How many of the first offers make the most tokens per second; 0: none are worth it."""
        best, count, tokens = LEAST_GAIN, 0, 0.0
        for place, offer in enumerate(offers, start=1):
            tokens += 1.0 - offer.doubt
            gain = reckoning.gain(place, tokens)
            if gain > best and reckoning.added_seconds(place) <= seconds:
                best, count = gain, place
        half = count // 2
        # Between what was timed lies perhaps something better.
        return half if half and not reckoning.is_timed(half) else count

    def _offers(self, decodes: Sequence[Request]) -> list[_Offer]:
        offers: list[_Offer] = []
        spare = self._memory.spare_blocks() - len(decodes)
        for request in decodes:
            most = min(self._most, request.longest_tokens - request.known_tokens - 1)
            most, blocks = self._room(request, most, spare)
            if request.drafting is None:
                request.drafting = Drafting(request.tokens, self._everyone)
            guess = request.drafting.guess(most) if most > 0 else None
            if guess is not None:
                spare -= blocks
                chances = request.drafting.survivals(guess)
                offers += [
                    _Offer(1.0 - chance, place, request.serial, request, guess)
                    for place, chance in enumerate(chances)
                ]
        return offers

    def _room(self, request: Request, tokens: int, spare: int) -> tuple[int, int]:
        """How many of these guesses find a slot, and how many of the spare blocks they take for it."""
        if request.table is None:
            raise InvariantError(f"{request.key} decodes without a block table")
        ledger, held = self._memory.ledger, len(request.table.blocks) + request.table.reserved_blocks
        more = ledger.blocks_for(request.known_tokens + tokens) - held
        if more <= max(0, spare):
            return tokens, max(0, more)
        return held * ledger.block_size - request.known_tokens, 0


class _Reckoning:
    """What guesses bring and cost in one step.

    ``plain``: seconds without any, if that is known; ``verify`` None: each costs the first price.
    """

    def __init__(self, verify: VerifyCost | None, plain: float, decodes: int, context_tokens: int) -> None:
        self._verify = verify
        self._plain = plain
        self._decodes = decodes
        self._context_tokens = context_tokens

    def gain(self, guesses: int, right: float) -> float:
        """Tokens per second with so many guesses, of which so many come true, over those without."""
        seconds = self._plain + self.added_seconds(guesses)
        return (1.0 + right / self._decodes) * self._plain / seconds if seconds > 0.0 else 0.0

    def added_seconds(self, guesses: int) -> float:
        """What so many guesses add to the step."""
        if self._verify is None:
            return guesses * FIRST_PRICE * self._plain
        return self._verify.predict(self._decodes + guesses, self._context_tokens + guesses) - self._plain

    def is_timed(self, guesses: int) -> bool:
        """Whether such a step was timed; nothing is where nothing is known."""
        return self._verify is None or self._verify.is_timed(self._decodes + guesses)


def _drafts(offers: Sequence[_Offer]) -> Drafts:
    """Of each request its offers together."""
    lengths: dict[Request, tuple[int, Guess]] = {}
    for offer in offers:
        lengths[offer.request] = (offer.place + 1, offer.guess)
    return {request: guess.tokens[:length] for request, (length, guess) in lengths.items()}
