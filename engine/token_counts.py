"""How often each request's tokens occurred, on the device: what penalties need before the host knows them.

A request with penalties has a *slot*, a row of counts over the vocabulary. The sampling kernels add each
token that they choose, so the slot is ahead of the host by what is under way. ``counted`` says how many
tokens of the answer it holds; where that is not what a row needs (first seen, moved out, a step repeated), it
is filled anew from the tokens that the host knows. A row behind a guess counts that too, so it has a slot of
its own, which is filled anew every time.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from headway.engine.errors import InvariantError
from headway.engine.values import Admitted, RequestKey
from headway.kernels.host_arrays import to_device
from headway.kernels.sampling_launches import count_tokens

FEWEST_SLOTS = 8

SlotKey: TypeAlias = tuple[RequestKey, int]
"""A request and how many guesses the row is behind."""


class KnownTokens:
    """Prompt and answer of one request, as far as the host has heard of them."""

    __slots__ = ("answer", "prompt")

    def __init__(self, admitted: Admitted) -> None:
        self.prompt = admitted.prompt_token_ids
        self.answer = list(admitted.generated_token_ids)

    def learn(self, start: int, token_ids: tuple[int, ...]) -> None:
        """The request's tokens from position ``start`` on; those known already are the same."""
        fresh = len(self.prompt) + len(self.answer) - start
        if fresh >= 0:
            self.answer += token_ids[fresh:]


@dataclass(slots=True)
class _Slot:
    place: int
    counted: int
    """Tokens of the answer in it, those included that a step under way will choose."""


class TokenCounts:
    """Slots of requests; those used longest ago make room."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._slots: OrderedDict[SlotKey, _Slot] = OrderedDict()
        self.counts = self._zeros(0)
        """int32 [slots, vocab], as ``fused_sampling.RowPenalties`` wants them."""

    def make_room(self, requests: int) -> bool:
        """Have at least so many slots; True: ``counts`` is another tensor now."""
        if requests <= len(self.counts):
            return False
        before, size = self.counts, max(FEWEST_SLOTS, 1 << (requests - 1).bit_length())
        self.counts = self._zeros(size)
        self.counts[: len(before)] = before
        return True

    def slot(
        self,
        key: RequestKey,
        known: KnownTokens,
        index: int,
        guessed: tuple[int, ...],
        busy: Collection[SlotKey],
    ) -> int:
        """The slot for choosing token ``index`` of an answer, holding those before it.

        ``busy``: those of this step, whose slots nobody else gets. InvariantError: the host does not know
        the tokens, which only happens when a step that was never run is taken for done.
        """
        whose = (key, len(guessed))
        slot = self._slots.get(whose)
        if slot is None:
            slot = self._slots[whose] = _Slot(self._free_place(busy), -1)
        self._slots.move_to_end(whose)
        if guessed or slot.counted != index:
            self._fill(slot.place, key, known, index - len(guessed), guessed)
        slot.counted = index + 1
        return slot.place

    def forget(self, key: RequestKey) -> None:
        """The request is gone."""
        for whose in [whose for whose in self._slots if whose[0] == key]:
            del self._slots[whose]

    def _free_place(self, busy: Collection[SlotKey]) -> int:
        taken = {slot.place for slot in self._slots.values()}
        free = next((place for place in range(len(self.counts)) if place not in taken), None)
        if free is not None:
            return free
        idle = next(whose for whose in self._slots if whose not in busy)
        return self._slots.pop(idle).place

    def _fill(
        self, place: int, key: RequestKey, known: KnownTokens, count: int, guessed: tuple[int, ...]
    ) -> None:
        if len(known.answer) < count:
            raise InvariantError(f"{key}: token {count} is to be chosen, but {len(known.answer)} are known")
        prompt = np.array(known.prompt, dtype=np.int64)
        answer = np.array([*known.answer[:count], *guessed], dtype=np.int64)
        count_tokens(self.counts, place, to_device(prompt, self._device), to_device(answer, self._device))

    def _zeros(self, slots: int) -> Tensor:
        return torch.zeros((slots, self._vocab_size), dtype=torch.int32, device=self._device)
