"""From logits to tokens for one step: each row by its own request's parameters, all rows in bulk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
from torch import Tensor

from headway.engine.answer import Answer
from headway.engine.drafts import drafts_of, sampling_rows
from headway.engine.token_history import TokenHistory
from headway.engine.token_masks import MaskMaker, StepMasks, wishes_of
from headway.engine.values import Chunk, Logprobs, Sampled
from headway.kernels.host_arrays import as_array, float_list, float_rows, int_list, int_rows, to_device
from headway.kernels.sampling import (
    PenaltyEntries,
    apply_penalties,
    draw,
    log_probabilities,
    temper,
    truncation,
)

SMALLEST_TEMPERATURE = 1e-5
"""Below this only exact ties are still drawn; dividing by less would leave float32's range."""


NO_TOKENS: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class SamplingRow:
    """One row of logits: whose it is, and which token of the answer it chooses (0-based)."""

    answer: Answer
    index: int
    guessed: tuple[int, ...] = ()
    """Guesses between the last known token and this row: if one is wrong, nobody wants what it chooses."""
    masks: StepMasks | None = None
    """Where its mask is, at ``mask_place``; None: every token may be chosen."""
    mask_place: int = 0

    @property
    def history(self) -> TokenHistory | None:
        """The tokens that penalties count for this row; None: it has none."""
        known = self.answer.history
        return known.followed_by(self.guessed) if known is not None and self.guessed else known

    @property
    def forced(self) -> int | None:
        """The token that its form leaves no choice about, where nobody asks how likely it was."""
        if self.masks is None or self.answer.sampling.logprobs is not None:
            return None
        return self.masks.forced(self.mask_place)

    @property
    def mask_address(self) -> int:
        """Where its mask's bits lie, as long as the step lasts; 0: it has none."""
        return 0 if self.masks is None else self.masks.address(self.mask_place)

    @property
    def takes_most_likely(self) -> bool:
        """Whether the largest raw logit of those it may choose decides alone, and nobody asks for more than
        the token."""
        sampling = self.answer.sampling
        return (
            sampling.is_greedy
            and sampling.logprobs is None
            and self.answer.history is None
            and not sampling.logit_bias
            # The mask of a held answer keeps early ends off already.
            and (self.masks is not None or self.index >= sampling.min_tokens)
        )


def rows_of(answer: Answer, chunk: Chunk) -> list[SamplingRow]:
    """The rows of a chunk that samples: behind its last known token, and behind each guess."""
    index = answer.index_after(chunk)
    if not chunk.draft_tokens:
        return [SamplingRow(answer, index)]
    drafts = drafts_of(chunk)
    return [SamplingRow(answer, index + place, drafts[:place]) for place in range(sampling_rows(chunk))]


def masked(rows: Sequence[SamplingRow], maker: MaskMaker | None) -> Sequence[SamplingRow]:
    """The rows of a step, those of constrained answers with their masks, which are made from now on."""
    wishes = wishes_of([(row.answer.grammar, row.answer.sampling, row.index, row.guessed) for row in rows])
    if not wishes or maker is None:
        return rows
    masks, places = maker.begin(wishes), count()
    return [
        row
        if row.answer.grammar is None
        else SamplingRow(row.answer, row.index, row.guessed, masks, next(places))
        for row in rows
    ]


class Sampler:
    """Chooses one token per row, by the row's logits, parameters and index alone."""

    def __init__(self, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids

    def sample(
        self, logits: Tensor, rows: Sequence[SamplingRow], *, are_masked: bool = False
    ) -> tuple[Sampled, ...]:
        """Tokens for ``logits`` [rows, vocab] float32, which may be adjusted in place.

        ``are_masked``: they are −inf already where the rows' masks say no.
        """
        open_rows = [i for i, row in enumerate(rows) if row.forced is None]
        if not are_masked:
            _constrain(logits, [(i, rows[i]) for i in open_rows])
        if len(open_rows) == len(rows):
            return self._sample(logits, rows)
        chosen = iter(self._sample(logits[open_rows], [rows[i] for i in open_rows]) if open_rows else ())
        return tuple(
            [next(chosen) if row.forced is None else Sampled(row.answer.key, row.forced) for row in rows]
        )

    def _sample(self, logits: Tensor, rows: Sequence[SamplingRow]) -> tuple[Sampled, ...]:
        self._penalise(logits, rows)
        self._bias(logits, rows)
        chosen = self._choose(logits, rows)
        logprobs = self._logprobs(logits, rows, chosen)
        return tuple(
            Sampled(row.answer.key, token, logprobs.get(i))
            for i, (row, token) in enumerate(zip(rows, int_list(chosen), strict=True))
        )

    def _penalise(self, logits: Tensor, rows: Sequence[SamplingRow]) -> None:
        penalised = [
            (i, row.answer, history) for i, row in enumerate(rows) if (history := row.history) is not None
        ]
        if not penalised:
            return
        sizes = [len(history.tokens) for _, _, history in penalised]

        def spread(values: Sequence[float]) -> Tensor:
            return to_device(np.repeat(np.array(values, dtype=np.float32), sizes), logits.device)

        samplings = [answer.sampling for _, answer, _ in penalised]
        rows_of = np.repeat(np.array([i for i, _, _ in penalised]), sizes)
        tokens = np.concatenate([history.tokens for _, _, history in penalised])
        counts = np.concatenate([history.answer_counts for _, _, history in penalised])
        entries = PenaltyEntries(
            rows=to_device(rows_of, logits.device),
            tokens=to_device(tokens, logits.device),
            answer_counts=to_device(counts, logits.device),
            repetition=spread([s.repetition_penalty for s in samplings]),
            presence=spread([s.presence_penalty for s in samplings]),
            frequency=spread([s.frequency_penalty for s in samplings]),
        )
        apply_penalties(logits, entries)

    def _bias(self, logits: Tensor, rows: Sequence[SamplingRow]) -> None:
        """Add logit_bias; forbid the tokens that end an answer while it is shorter than min_tokens."""
        changes: list[tuple[int, int, float]] = []
        for i, row in enumerate(rows):
            sampling = row.answer.sampling
            changes += [
                (i, token, bias) for token, bias in sampling.logit_bias if 0 <= token < self._vocab_size
            ]
            if row.index < sampling.min_tokens and row.masks is None:  # else its mask says so
                ends = sampling.stop_token_ids | (NO_TOKENS if sampling.ignore_eos else self._eos_token_ids)
                changes += [(i, token, float("-inf")) for token in ends if 0 <= token < self._vocab_size]
        if changes:
            row_ids, tokens, values = zip(*changes, strict=True)
            where = (torch.tensor(row_ids, device=logits.device), torch.tensor(tokens, device=logits.device))
            logits.index_put_(where, torch.tensor(values, device=logits.device), accumulate=True)

    def _choose(self, logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
        drawn = [i for i, row in enumerate(rows) if not row.answer.sampling.is_greedy]
        if not drawn:
            return logits.argmax(dim=-1)
        if len(drawn) == len(rows):
            return _draw(logits, rows)
        chosen = logits.argmax(dim=-1)
        where = torch.tensor(drawn, device=logits.device)
        chosen[where] = _draw(logits[where], [rows[i] for i in drawn])
        return chosen

    def _logprobs(self, logits: Tensor, rows: Sequence[SamplingRow], chosen: Tensor) -> dict[int, Logprobs]:
        wanted = {i: k for i, row in enumerate(rows) if (k := row.answer.sampling.logprobs) is not None}
        if not wanted:
            return {}
        where = torch.tensor(list(wanted), device=logits.device)
        picked, values, ids = log_probabilities(logits[where], chosen[where], max(wanted.values()))
        best = zip(float_list(picked), float_rows(values), int_rows(ids), strict=True)
        return {
            i: Logprobs(own, likely(top_ids[:k], top_values[:k]))
            for (i, k), (own, top_values, top_ids) in zip(wanted.items(), best, strict=True)
        }


def likely(token_ids: Sequence[int], values: Sequence[float]) -> tuple[tuple[int, float], ...]:
    """The most likely tokens with their log-probabilities, less those that cannot be chosen."""
    pairs = zip(token_ids, values, strict=True)
    return tuple([(token_id, value) for token_id, value in pairs if value != -math.inf])


def _constrain(logits: Tensor, rows: Sequence[tuple[int, SamplingRow]]) -> None:
    """Leave each row only what its mask allows; waits for the masks. No penalty or bias, which are finite,
    brings back what is −inf."""
    for i, row in rows:
        if row.masks is None:
            continue
        forbidden = row.masks.forbidden(row.mask_place)
        if logits.device.type == "cpu":
            # torch would divide a row's 20 µs among threads, and wait for them where the cores are busy.
            np.copyto(as_array(logits[i]), np.float32(-math.inf), where=forbidden)
        else:
            logits[i].masked_fill_(to_device(forbidden, logits.device), -math.inf)


def _draw(logits: Tensor, rows: Sequence[SamplingRow]) -> Tensor:
    samplings = [row.answer.sampling for row in rows]
    device = logits.device
    temperatures = torch.tensor([max(s.temperature, SMALLEST_TEMPERATURE) for s in samplings], device=device)
    uniforms = [row.answer.uniform(row.index) for row in rows]
    tempered = temper(logits, temperatures)
    thresholds = None
    if any(s.top_k > 0 or s.top_p < 1.0 or s.min_p > 0.0 for s in samplings):
        thresholds = truncation(
            tempered,
            top_k=torch.tensor([s.top_k for s in samplings], device=device),
            top_p=torch.tensor([s.top_p for s in samplings], device=device),
            min_p=torch.tensor([s.min_p for s in samplings], device=device),
        )
    return draw(tempered, thresholds, torch.tensor(uniforms, dtype=torch.float64, device=device))
