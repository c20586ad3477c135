"""Plans as bytes, for ranks that execute the same ones: block tables as what they have grown by.

A decode's table is hundreds of numbers that both sides know already. Both remember each request's last one,
so a step carries a few bytes per request; and the receiver's tuples are replaced only when they grow, as
``Chunk`` promises. Bytes are ``marshal``'s, whose reading runs nothing that it reads.
"""

from __future__ import annotations

import marshal
from dataclasses import fields
from typing import Any, TypeAlias

from headway.engine.values import Admitted, BlockCopy, Chunk, RequestKey, Sampling, StepPlan

Table: TypeAlias = tuple[int, ...]

SAMPLING_FIELDS = tuple(field.name for field in fields(Sampling))


class PlanEncoder:
    """One side: every plan that it encodes has to be decoded by the other, in order."""

    def __init__(self) -> None:
        self._tables: dict[RequestKey, Table] = {}

    def encode(self, plan: StepPlan) -> bytes:
        """The plan's bytes."""
        for key in plan.released:
            self._tables.pop(key, None)
        return marshal.dumps(
            (
                plan.step,
                [self._chunk(chunk) for chunk in plan.chunks],
                [
                    (tuple(a.key), a.prompt_token_ids, a.generated_token_ids, _sampling(a.sampling))
                    for a in plan.admitted
                ],
                [tuple(key) for key in plan.released],
                [
                    [(copy.source, copy.target) for copy in copies]
                    for copies in (plan.copies, plan.swaps_out, plan.swaps_in)
                ],
                plan.awaits_copies,
            )
        )

    def _chunk(self, chunk: Chunk) -> tuple[Any, ...]:
        """With its table as (blocks kept of the last one, blocks behind them)."""
        table, last = chunk.block_table, self._tables.get(chunk.key, ())
        kept = len(last) if table is last or table[: len(last)] == last else 0
        self._tables[chunk.key] = table
        return tuple(chunk.key), chunk.start, chunk.token_ids, (kept, table[kept:]), *chunk[4:]


class PlanDecoder:
    """The other side."""

    def __init__(self) -> None:
        self._tables: dict[RequestKey, Table] = {}

    def decode(self, message: bytes) -> StepPlan:
        """The plan that was encoded."""
        step, chunks, admitted, released, copies, awaits_copies = marshal.loads(
            message
        )  # from rank 0 of this worker, and never code
        gone = tuple(RequestKey(*key) for key in released)
        for key in gone:
            self._tables.pop(key, None)
        return StepPlan(
            step=step,
            chunks=tuple([self._chunk(chunk) for chunk in chunks]),
            admitted=tuple(
                Admitted(RequestKey(*key), prompt, generated, Sampling(*sampling))
                for key, prompt, generated, sampling in admitted
            ),
            released=gone,
            copies=_copies(copies[0]),
            swaps_out=_copies(copies[1]),
            swaps_in=_copies(copies[2]),
            awaits_copies=awaits_copies,
        )

    def _chunk(self, sent: tuple[Any, ...]) -> Chunk:
        whose, start, token_ids, (kept, behind), *rest = sent
        key = RequestKey(*whose)
        last = self._tables.get(key, ())
        table = last if kept == len(last) and not behind else (*last[:kept], *behind)
        self._tables[key] = table
        return Chunk(key, start, token_ids, table, *rest)


def _copies(pairs: list[tuple[int, int]]) -> tuple[BlockCopy, ...]:
    return tuple(BlockCopy(source, target) for source, target in pairs)


def _sampling(sampling: Sampling) -> tuple[Any, ...]:
    return tuple(getattr(sampling, name) for name in SAMPLING_FIELDS)
