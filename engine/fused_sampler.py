"""From logits to tokens on the GPU: the rows' parameters go up with the step, the tokens stay there too.

What a row may want is the same as with ``Sampler``, by the same definitions and draws. Launches that only
some rows need (penalties, added biases, log-probabilities) are part of a bucket of their own, so a step of
plain rows does not pay for them.

    logits ─ penalties ─ biases ─ temperature, truncation, draw ─► latest [rows] ─► next step's embedding
                          └────── log-probabilities of the choice and of the most likely tokens

Penalties are the first launch's. Biases are torch's, and so are the penalties of a step that has both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.engine.fused_request import FusedRequest
from headway.engine.fused_results import ChosenRows, FusedRow
from headway.engine.fused_step import Bucket
from headway.engine.step_buffers import Field
from headway.engine.token_counts import TokenCounts
from headway.kernels.fused_sampling import RowPenalties, RowSampling
from headway.kernels.launch import Chip, next_power_of_two
from headway.kernels.row_log_probabilities import row_log_probabilities
from headway.kernels.sampling import log_probabilities
from headway.kernels.sampling_launches import SamplingBuffers, penalised_logits, sampling_launches

FEWEST_ROWS = 64
FEWEST_TOP = 8
FEWEST_BIASES = 16
FIRST_TOP = 32
"""Most likely tokens of a row that there is room for from the start: OpenAI's 20, rounded up."""


class FusedSampler:
    """Chooses one token per row, by the row's logits, parameters and index alone."""

    def __init__(
        self,
        vocab_size: int,
        eos_token_ids: frozenset[int],
        device: torch.device,
        chip: Chip,
        *,
        is_deterministic: bool = False,
    ) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._device = device
        self._chip = chip
        self._is_deterministic = is_deterministic
        self._counts = TokenCounts(vocab_size, device)
        self._buffers = SamplingBuffers.make(FEWEST_ROWS, vocab_size, device)
        self.chosen = ChosenRows.make(FEWEST_ROWS, FIRST_TOP, device)

    def forget(self, request: FusedRequest) -> None:
        """The request is gone."""
        self._counts.forget(request.key)

    def extend(self, bucket: Bucket, rows: Sequence[FusedRow]) -> Bucket:
        """The bucket with what these rows want of it."""
        tops = [top for row in rows if (top := row.request.sampling.logprobs) is not None]
        return replace(
            bucket,
            is_penalised=any(row.request.known is not None for row in rows),
            biases=_bucketed(len(self._biases(rows)), FEWEST_BIASES),
            top_logprobs=max(FEWEST_TOP, next_power_of_two(max(tops))) if tops else None,
            is_masked=any(row.request.grammar is not None for row in rows),
        )

    def make_room(self, rows: int, top: int = 0) -> bool:
        """Have memory for so many rows and likely tokens; True: every graph captured before is void."""
        had_rows, had_top = self.chosen.room
        wanted = max(had_rows, next_power_of_two(rows)), max(had_top, top)
        if wanted == (had_rows, had_top):
            return False
        before = self.chosen.tokens
        self.chosen = ChosenRows.make(*wanted, self._device)
        self.chosen.tokens[:had_rows] = before  # the next step may name them
        self._buffers = SamplingBuffers.make(wanted[0], self._vocab_size, self._device)
        return True

    def make_count_room(self, rows: int) -> bool:
        """Have memory for so many rows with penalties; True: graphs of penalised buckets are void."""
        return self._counts.make_room(rows)

    def fields(self, bucket: Bucket) -> tuple[Field, ...]:
        """What is uploaded for the rows of a step."""
        whole, half, single = torch.int64, torch.int32, torch.float32
        rows = (bucket.rows,)
        fields = [
            Field("temperature", single, rows),
            Field("top_k", half, rows),
            Field("top_p", single, rows, padding=1.0),
            Field("floor", single, rows, padding=float("-inf")),
            Field("seeds", whole, rows),
            Field("places", whole, rows),
        ]
        if bucket.is_penalised:
            fields += [
                Field("count_slots", half, rows, padding=-1),
                Field("repetition", single, rows, padding=1.0),
                Field("presence", single, rows),
                Field("frequency", single, rows),
            ]
        if bucket.biases:
            fields += [
                Field("biased", whole, (bucket.biases,)),
                Field("biases", single, (bucket.biases,)),
            ]
        return tuple(fields)

    def content(self, bucket: Bucket, rows: Sequence[FusedRow]) -> dict[str, NDArray[Any]]:
        """The arrays of those fields; gives slots to rows with penalties."""
        samplings = [row.request.sampling for row in rows]
        content: dict[str, NDArray[Any]] = {
            "temperature": np.array([row.request.temperature for row in rows], dtype=np.float32),
            "top_k": np.array([sampling.top_k for sampling in samplings], dtype=np.int32),
            "top_p": np.array([sampling.top_p for sampling in samplings], dtype=np.float32),
            "floor": np.array([row.request.floor for row in rows], dtype=np.float32),
            "seeds": np.array([row.request.seed for row in rows], dtype=np.int64),
            "places": np.array([row.index for row in rows], dtype=np.int64),
        }
        if bucket.is_penalised:
            content |= {
                "count_slots": np.array(self._slots(rows), dtype=np.int32),
                "repetition": np.array([s.repetition_penalty for s in samplings], dtype=np.float32),
                "presence": np.array([s.presence_penalty for s in samplings], dtype=np.float32),
                "frequency": np.array([s.frequency_penalty for s in samplings], dtype=np.float32),
            }
        if bucket.biases:
            biases = self._biases(rows)
            content["biased"] = np.array([place for place, _ in biases], dtype=np.int64)
            content["biases"] = np.array([value for _, value in biases], dtype=np.float32)
        return content

    def choose(self, logits: Tensor, bucket: Bucket, arrays: Mapping[str, Tensor]) -> None:
        """Launch it: tokens for ``logits`` [rows, vocab] float32, which are adjusted, into ``chosen``."""
        penalties = self._penalties(arrays) if bucket.is_penalised else None
        if bucket.biases:
            if penalties is not None:
                # Biases come after penalties, which the first launch would do: in a step with both, a rare
                # one, torch does them, with a few more passes over the logits, and the launch only counts.
                logits.copy_(penalised_logits(logits, penalties))
                penalties = _only_counting(penalties)
            logits.view(-1).index_add_(0, arrays["biased"], arrays["biases"])
        rows = RowSampling(
            temperature=arrays["temperature"],
            top_k=arrays["top_k"],
            top_p=arrays["top_p"],
            floor=arrays["floor"],
            seeds=arrays["seeds"],
            positions=arrays["places"],
            penalties=penalties,
        )
        tokens = self.chosen.tokens[: bucket.rows]
        for launch in sampling_launches(logits, rows, self._buffers, tokens, None, chip=self._chip):
            launch.run()
        if bucket.top_logprobs is not None:
            top = min(bucket.top_logprobs, self._vocab_size)
            picked, values, ids = (
                row_log_probabilities(logits, tokens, top, chip=self._chip)
                if self._is_deterministic
                else log_probabilities(logits, tokens, top)
            )
            self.chosen.picked[: bucket.rows].copy_(picked)
            self.chosen.top_values[: bucket.rows, :top].copy_(values)
            self.chosen.top_ids[: bucket.rows, :top].copy_(ids)

    def _slots(self, rows: Sequence[FusedRow]) -> list[int]:
        busy = {(row.request.key, len(row.guessed)) for row in rows}
        return [
            -1
            if (known := row.request.known) is None
            else self._counts.slot(row.request.key, known, row.index, row.guessed, busy)
            for row in rows
        ]

    def _biases(self, rows: Sequence[FusedRow]) -> list[tuple[int, float]]:
        """(place in the logits as one row, what to add): logit_bias, and no ends before min_tokens."""
        biases: list[tuple[int, float]] = []
        for place, row in enumerate(rows):
            sampling, first = row.request.sampling, place * self._vocab_size
            if sampling.logit_bias:
                biases += [
                    (first + token, bias)
                    for token, bias in sampling.logit_bias
                    if 0 <= token < self._vocab_size
                ]
            if row.index < sampling.min_tokens and row.request.grammar is None:  # else its mask says so
                ends = sampling.stop_token_ids
                if not sampling.ignore_eos:
                    ends |= self._eos_token_ids
                biases += [(first + token, float("-inf")) for token in ends if 0 <= token < self._vocab_size]
        return biases

    def _penalties(self, arrays: Mapping[str, Tensor]) -> RowPenalties:
        return RowPenalties(
            counts=self._counts.counts,
            slots=arrays["count_slots"],
            repetition=arrays["repetition"],
            presence=arrays["presence"],
            frequency=arrays["frequency"],
        )


def _only_counting(penalties: RowPenalties) -> RowPenalties:
    """Strengths that change nothing: the choice is counted all the same."""
    return replace(
        penalties,
        repetition=torch.ones_like(penalties.repetition),
        presence=torch.zeros_like(penalties.presence),
        frequency=torch.zeros_like(penalties.frequency),
    )


def _bucketed(count: int, fewest: int) -> int:
    return max(fewest, next_power_of_two(count)) if count else 0
