"""Which guesses a step computes beside the tokens that it must: those that bring more than they take.

    a decode step     N tokens in T seconds
    one guess more    with chance p another token, for dt seconds:     worth it where  p / dt > tokens / T

The best guesses come first, each raises tokens and T, and the first that brings less than the step so far is
the end: so each step makes the most tokens per second (SmartSpec, arXiv 2406.14066). p is learned for each
request (``acceptance.py``), T and dt by the cost model. Prefills go first: guesses get what a step has left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from headway.engine.acceptance import Acceptance
from headway.engine.budget import StepBudget
from headway.engine.cost_model import CostModel, shape_of
from headway.engine.drafting import Drafting
from headway.engine.errors import InvariantError
from headway.engine.flights import Flight
from headway.engine.memory import Memory
from headway.engine.prompt_lookup import Guess
from headway.engine.request import Request

FIRST_PRICE: Final = 1 / 16
"""Of a guessed token, in plain steps, before any was timed: about what memory-bound steps showed."""
GAIN_SHARE: Final = 1 / 16
"""Weight of the newest step in the tracked gain."""
FIRST_GAIN: Final = 1.2
LEAST_REST: Final = 64
MOST_REST: Final = 4096

PROBE_STEPS: Final = 512
"""After so many quiet steps guesses are tried at the first price: what they were seen to cost may be over."""

Drafts = Mapping[Request, tuple[int, ...]]
NO_DRAFTS: Final[Drafts] = {}


class _Offer(NamedTuple):
    """One guessed token. Sorts by what it brings per second, best first, then by its place."""

    loss: float
    place: int
    serial: int
    seconds: float
    chance: float
    request: Request
    guess: Guess


class Speculation:
    """Chooses guesses for decodes, and learns what becomes of them. Owns ``Request.drafting``."""

    def __init__(self, memory: Memory, cost: CostModel, *, max_draft_tokens: int) -> None:
        self._memory = memory
        self._cost = cost
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
        plain = self._cost.decode_step_seconds([request.computed_tokens for request in decodes])
        drafts = self._take(self._offers(decodes, plain), len(decodes), plain, room, budget.seconds)
        self._quiet_steps = 0 if drafts else self._quiet_steps + 1
        return drafts

    def learn(self, flight: Flight, seconds: float) -> None:
        """A step landed that took so long: what was right, and whether it paid."""
        if any(flight.drafts):
            self.draft_tokens += sum(flight.drafts)
            self.right_tokens += sum(
                [tokens - 1 for tokens, drafts in zip(flight.tokens, flight.drafts, strict=True) if drafts]
            )
        for request, start in zip(flight.requests, flight.starts, strict=True):
            if request.drafting is not None and request.key in flight.sampled:
                request.drafting.learn(start + 1, flight.sampled[request.key])
        if flight.shape.has_drafts:
            self._weigh(flight, seconds)

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

    def load(self) -> dict[str, float]:
        """Counts for metrics."""
        return {
            "draft_tokens": float(self.draft_tokens),
            "draft_tokens_right": float(self.right_tokens),
            "speculation_gain": self.gain,
        }

    def _offers(self, decodes: Sequence[Request], plain: float | None) -> list[_Offer]:
        offers: list[_Offer] = []
        is_probe = self._quiet_steps >= PROBE_STEPS
        spare = self._memory.spare_blocks() - len(decodes)
        for request in decodes:
            most = min(self._most, request.longest_tokens - request.known_tokens - 1)
            most, blocks = self._room(request, most, spare)
            if most < 1:
                continue
            price = self._price(request, most, plain, is_probe=is_probe)
            # Even where it is sure to be right, it may not be worth looking for.
            if plain is not None and price * len(decodes) >= plain:
                continue
            guess = self._drafting(request).guess(most)
            if guess is None:
                continue
            spare -= blocks
            chances = self._drafting(request).survivals(guess)
            offers += [
                _Offer(-chance / price, place, request.serial, price, chance, request, guess)
                for place, chance in enumerate(chances)
            ]
        return sorted(offers)

    def _take(
        self, offers: Sequence[_Offer], tokens: float, seconds: float | None, room: int, left: float
    ) -> Drafts:
        """The first offers, as long as each brings more than what is taken already."""
        lengths: dict[Request, int] = {}
        guesses: dict[Request, Guess] = {}
        time = 1.0 if seconds is None else seconds
        for offer in offers[:room]:
            if offer.chance * time <= tokens * offer.seconds or offer.seconds > left:
                break
            tokens += offer.chance
            time += offer.seconds
            left -= offer.seconds if seconds is not None else 0.0
            lengths[offer.request] = offer.place + 1
            guesses[offer.request] = offer.guess
        return {request: guesses[request].tokens[:length] for request, length in lengths.items()}

    def _room(self, request: Request, tokens: int, spare: int) -> tuple[int, int]:
        """How many of these guesses find a slot, and how many of the spare blocks they take for it."""
        if request.table is None:
            raise InvariantError(f"{request.key} decodes without a block table")
        ledger, held = self._memory.ledger, len(request.table.blocks) + request.table.reserved_blocks
        more = ledger.blocks_for(request.known_tokens + tokens) - held
        if more <= max(0, spare):
            return tokens, max(0, more)
        return held * ledger.block_size - request.known_tokens, 0

    def _price(self, request: Request, tokens: int, plain: float | None, *, is_probe: bool) -> float:
        """Seconds of one of so many guessed tokens; in plain steps where no step was timed."""
        if plain is None:
            return FIRST_PRICE
        seconds = None if is_probe else self._cost.draft_seconds(request.computed_tokens, tokens)
        return plain * FIRST_PRICE if seconds is None else seconds / tokens

    def _drafting(self, request: Request) -> Drafting:
        if request.drafting is None:
            request.drafting = Drafting(request.tokens, self._everyone)
        return request.drafting
