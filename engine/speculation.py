"""Which guesses a step computes beside the tokens that it must: as many as make the most tokens per second.

    N decodes                   N tokens in T seconds
    and the k best guesses      N + p₁ + … + pₖ tokens in T · ratio(k) seconds

The guesses that are likeliest to come true go first, whosesoever they are (SmartSpec, arXiv 2406.14066, whose
goodput this is). p is learned for each request (``acceptance.py``), the ratio from the steps
(``guess_prices.py``). Prefills go before guesses: these get what a step has left of its tokens and its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from headway.engine.acceptance import Acceptance
from headway.engine.budget import StepBudget
from headway.engine.cost_model import CostModel, shape_of
from headway.engine.drafting import Drafting
from headway.engine.errors import InvariantError
from headway.engine.flight import Flight
from headway.engine.guess_prices import GuessPrices, size_class
from headway.engine.memory import Memory
from headway.engine.prompt_lookup import Guess
from headway.engine.request import Request

LEAST_GAIN: Final = 1.03
"""Tokens per second that guesses must promise over those without: less is nothing but noise."""
LEAST_CHANCE: Final = 0.02
GAIN_SHARE: Final = 1 / 16
"""Weight of the newest step in the tracked gain."""
FIRST_GAIN: Final = 1.2
MOST_GAIN: Final = 2.0
"""A step's gain counts as this at most, so that a time of plenty is soon forgotten."""
LEAST_REST: Final = 64
MOST_REST: Final = 4096
PROBE_STEPS: Final = 512
"""After so many quiet steps prices are forgotten: what guesses were seen to cost may be over."""
ONE_MORE_EVERY: Final = 16
"""Of the steps with guesses one tries one more than seemed best, if that was never timed."""
PLAIN_EVERY: Final = 64
"""Of the steps that would hold guesses one has none: what they are compared with has to stay true."""
FEWEST_PLAIN: Final = 4
RECKONED: Final = (1, 2, 4, 8)
"""Numbers of guesses that are reckoned with before anything is looked up."""

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
        self._prices: dict[int, GuessPrices] = {}
        """By size of the batch."""
        self._most = max_draft_tokens
        self._everyone = Acceptance()
        self._resting_steps = 0
        self._quiet_steps = 0
        """In a row in which no guess was worth it."""
        self._drafted_steps = 0
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
        prices = self._prices_of(len(decodes))
        room = min(room, prices.most)
        drafts: Drafts = NO_DRAFTS
        # Even if all came true they may not be worth it, and none is whose chance is below its price.
        if max([_gain(prices, len(decodes), k, k) for k in RECKONED if k <= room]) > LEAST_GAIN:
            least = len(decodes) * min([(prices.ratio(k) - 1.0) / k for k in RECKONED if k <= room])
            offers = sorted(self._offers(decodes, max(LEAST_CHANCE, least)))[:room]
            drafts = _drafts(offers[: self._count(offers, decodes, prices, budget.seconds)])
        self._quiet_steps = 0 if drafts else self._quiet_steps + 1
        return NO_DRAFTS if drafts and self._is_plain_due() else drafts

    def learn(self, flight: Flight, seconds: float) -> None:
        """A step landed that took so long: what was right, and whether it paid."""
        for request, start in zip(flight.requests, flight.starts, strict=True):
            if request.drafting is not None and request.key in flight.sampled:
                request.drafting.learn(start + 1, flight.sampled[request.key])
        if any(flight.drafts):
            drafted = [place for place, drafts in enumerate(flight.drafts) if drafts]
            self.draft_tokens += sum(flight.drafts)
            self.right_tokens += sum([flight.tokens[place] - 1 for place in drafted])
        # A step may hold nothing but copies.
        if flight.requests and not flight.shape.prefill_work:
            self._weigh(flight, seconds)

    def load(self) -> dict[str, float]:
        """Counts for metrics."""
        return {
            "draft_tokens": float(self.draft_tokens),
            "draft_tokens_right": float(self.right_tokens),
            "speculation_gain": self.gain,
        }

    def _weigh(self, flight: Flight, seconds: float) -> None:
        """What a step of decodes took. Where guesses lose, they rest, each time for longer."""
        plain, decodes, guesses = self._plain_seconds(flight.starts), len(flight.starts), sum(flight.drafts)
        if not (plain and seconds):
            return
        prices = self._prices_of(decodes)
        prices.observe(guesses, seconds / plain)
        if not guesses:
            return
        gain = min(MOST_GAIN, sum(flight.tokens) / decodes * prices.plain_time * plain / seconds)
        self.gain += GAIN_SHARE * (gain - self.gain)
        if self.gain < 1.0:
            self._resting_steps, self._next_rest = self._next_rest, min(MOST_REST, 2 * self._next_rest)
            self.gain = FIRST_GAIN
        elif self.gain > FIRST_GAIN:
            self._next_rest = LEAST_REST

    def _prices_of(self, decodes: int) -> GuessPrices:
        if self._quiet_steps >= PROBE_STEPS:
            self._prices.clear()
            self._quiet_steps = 0
        size = size_class(decodes)
        if size not in self._prices:
            self._prices[size] = GuessPrices(size)
        return self._prices[size]

    def _plain_seconds(self, starts: Sequence[int]) -> float:
        """Of a step with one token from each start on; 0 while nothing is known."""
        return self._cost.decode.predict(shape_of([(start, 1) for start in starts]))

    def _is_plain_due(self) -> bool:
        """Whether this step has to do without guesses, although they would pay."""
        self._drafted_steps += 1
        is_timed = self._cost.mixed.steps > 0
        few = is_timed and self._cost.decode.steps < FEWEST_PLAIN
        return few or self._drafted_steps % PLAIN_EVERY == 0

    def _count(
        self, offers: Sequence[_Offer], decodes: Sequence[Request], prices: GuessPrices, seconds: float
    ) -> int:
        """How many of the first offers make the most tokens per second; 0: none are worth it."""
        plain = self._plain_seconds([request.computed_tokens for request in decodes])
        best, count, right = LEAST_GAIN, 0, 0.0
        for place, offer in enumerate(offers, start=1):
            right += 1.0 - offer.doubt
            gain = _gain(prices, len(decodes), place, right)
            if gain > best and (prices.ratio(place) - 1.0) * plain <= max(0.0, seconds):
                best, count = gain, place
        is_curious = count > 0 and self._drafted_steps % ONE_MORE_EVERY == 0
        return count + (is_curious and not prices.is_timed(count + 1))

    def _offers(self, decodes: Sequence[Request], least: float) -> list[_Offer]:
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
                chances = request.drafting.survivals(guess, least)
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


def _gain(prices: GuessPrices, decodes: int, guesses: int, right: float) -> float:
    """Tokens per second with so many guesses, of which so many come true, over those without."""
    return (1.0 + right / decodes) / prices.ratio(guesses)


def _drafts(offers: Sequence[_Offer]) -> Drafts:
    """Of each request its offers together."""
    lengths: dict[Request, tuple[int, Guess]] = {}
    for offer in offers:
        lengths[offer.request] = (offer.place + 1, offer.guess)
    return {request: guess.tokens[:length] for request, (length, guess) in lengths.items()}
