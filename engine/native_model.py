"""The model on the native CPU kernels, beside ``TorchModel``: bfloat16 or float32."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from itertools import accumulate

from torch import Tensor

from headway.engine.answer import Answer
from headway.engine.drafts import sampling_rows
from headway.engine.kv_cache import KVCache
from headway.engine.sampler import Sampler, SamplingRow
from headway.engine.values import Chunk, Sampled
from headway.kernels.cpu_step import CpuModel, CpuStep, StepTimes


def _ends(chunks: Sequence[Chunk]) -> Iterator[int]:
    """Packed tokens up to each chunk's end."""
    return accumulate(len(chunk.token_ids) for chunk in chunks)


class NativeModel:
    """Computes new KV, and for each row the most likely token or its logits. Holds no state of requests."""

    def __init__(
        self,
        library: ctypes.CDLL,
        model: CpuModel,
        cache: KVCache,
        threads: int,
        cores: Sequence[int] | None = None,
    ) -> None:
        """``cores``: as many as threads; None: threads run anywhere."""
        self._step = CpuStep(library, model, cache.pools, threads=threads, cores=cores)
        self._weights = model
        self._cache = cache

    def wake(self) -> None:
        """A step follows within microseconds."""
        self._step.wake()

    def forward(
        self,
        chunks: Sequence[Chunk],
        answers: Sequence[Answer],
        rows: Sequence[int],
        kept_rows: int,
        masks: Sequence[int] = (),
    ) -> tuple[list[int], Tensor]:
        """Write the KV of all tokens; (most likely tokens of the rows, logits of the first ``kept_rows``).

        ``rows`` are packed tokens: the chunks' one after another. ``masks``: of each row, as ``CpuStep.run``
        has them. The logits live until the next step.
        """
        token_ids: list[int] = []
        for chunk in chunks:
            token_ids += chunk.token_ids
        return self._step.run(
            token_ids,
            starts=[chunk.start for chunk in chunks],
            counts=[len(chunk.token_ids) for chunk in chunks],
            tables=[
                answer.table_address(chunk.block_table) for answer, chunk in zip(answers, chunks, strict=True)
            ],
            rows=rows,
            kept_rows=kept_rows,
            masks=masks,
        )

    def decode(self, chunks: Sequence[Chunk], answers: Sequence[Answer]) -> tuple[Sampled, ...]:
        """The most likely token behind each of these chunks of one token: what ``sample`` brings where no row
        wants anything else, with nothing made per row."""
        count = len(chunks)
        most_likely, _ = self._step.run(
            [chunk.token_ids[0] for chunk in chunks],
            starts=[chunk.start for chunk in chunks],
            counts=(1,) * count,
            tables=[
                answer.table_address(chunk.block_table) for answer, chunk in zip(answers, chunks, strict=True)
            ],
            rows=range(count),
            kept_rows=0,
        )
        return tuple([Sampled(chunk.key, token) for chunk, token in zip(chunks, most_likely, strict=True)])

    def sample(
        self,
        chunks: Sequence[Chunk],
        answers: Sequence[Answer],
        rows: Sequence[SamplingRow],
        sampler: Sampler,
    ) -> tuple[Sampled, ...]:
        """One token per sampling row; only rows that do more than take the largest logit need theirs.

        Forms are kept where logits are computed, so what they forbid is never looked at again; where one
        leaves a single token, nothing is computed for it.
        """
        last_tokens = [
            end - row
            for end, chunk in zip(_ends(chunks), chunks, strict=True)
            for row in range(sampling_rows(chunk), 0, -1)
        ]
        if all(row.masks is None and row.takes_most_likely for row in rows):
            # Most steps: nobody's logits are wanted, nothing is to be put in order.
            most_likely, _ = self.forward(chunks, answers, last_tokens, kept_rows=0)
            return tuple(
                [Sampled(row.answer.key, token) for row, token in zip(rows, most_likely, strict=True)]
            )
        forced = {i: token for i, row in enumerate(rows) if (token := row.forced) is not None}
        order = sorted(set(range(len(rows))) - forced.keys(), key=lambda i: rows[i].takes_most_likely)
        kept = sum(not rows[i].takes_most_likely for i in order)
        most_likely, logits = self.forward(
            chunks,
            answers,
            [last_tokens[i] for i in order],
            kept,
            masks=[rows[i].mask_address for i in order],
        )
        sampled = (
            dict(
                zip(
                    order,
                    sampler.sample(logits, [rows[i] for i in order[:kept]], are_masked=True),
                    strict=False,
                )
            )
            if kept
            else {}
        )
        for i, token in (*zip(order[kept:], most_likely[kept:], strict=True), *forced.items()):
            sampled[i] = Sampled(rows[i].answer.key, token)
        return tuple([sampled[i] for i in range(len(rows))])

    def logits(self, chunks: Sequence[Chunk], answers: Sequence[Answer]) -> Tensor:
        """Logits [tokens, vocab] of every token, float32, in the chunks' order."""
        tokens = sum(len(chunk.token_ids) for chunk in chunks)
        return self.forward(chunks, answers, range(tokens), tokens)[1].clone()

    @property
    def times(self) -> StepTimes:
        """Where the last step's time went."""
        return self._step.times

    def weight_bytes(self, tokens: int) -> int:
        """Bytes of weights that a step of so many tokens reads."""
        return self._weights.weight_bytes(tokens)

    def close(self) -> None:
        """End the threads."""
        self._step.close()
