"""Rows of a table by index: token embeddings, and the hidden rows whose logits are wanted.

    out[t, :] = table[id(t), :]      id(t) = ids[t] if ids[t] ≥ 0 else latest[−1 − ids[t]]

table: [n, width]; ids: int64 [tokens]; latest: int64, tokens that the step before has sampled. A negative id
names one of them by its place, so a step can be launched before the host knows what the one before chose.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from headway.kernels.cases import Case, Outputs, Trial
from headway.kernels.launch import Chip, Counts, Launch, chip_of
from headway.kernels.triton_language import Operand, constexpr, jit, tl

BLOCK_BYTES = 4096
"""Of a row per program."""


def row_gather_reference(table: Tensor, ids: Tensor, latest: Tensor | None = None) -> Tensor:
    """The formula."""
    if latest is not None:
        ids = torch.where(ids >= 0, ids, latest[(-1 - ids).clamp(min=0)])
    return table.index_select(0, ids)


def row_gather(table: Tensor, ids: Tensor, latest: Tensor | None = None) -> Tensor:
    """[tokens, width] in the table's dtype. Without ``latest`` no id is negative."""
    if table.device.type != "cuda":
        return row_gather_reference(table, ids, latest)
    out = table.new_empty((len(ids), table.shape[1]))
    row_gather_launch(table, ids, latest, out, chip=chip_of(table.device)).run()
    return out


@jit
def _row_gather_kernel(
    table: Operand,
    row_stride: Operand,
    ids: Operand,
    latest: Operand,
    out: Operand,
    width: Operand,
    BLOCK: constexpr,
) -> None:
    token = tl.program_id(0)
    row = tl.load(ids + token)
    if latest is not None:
        row = tl.where(row >= 0, row, tl.load(latest + (-1 - row), mask=row < 0, other=0))
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(table + row * row_stride + columns, mask=inside)
    tl.store(out + token.to(tl.int64) * width + columns, values, mask=inside)


def row_gather_launch(
    table: Tensor, ids: Tensor, latest: Tensor | None, out: Tensor, *, chip: Chip
) -> Launch:
    """table's rows dense; out contiguous."""
    width = table.shape[1]
    block = BLOCK_BYTES // table.element_size()
    return Launch(
        _row_gather_kernel,
        (len(ids), -(-width // block)),
        {
            "table": table,
            "row_stride": table.stride(0),
            "ids": ids,
            "latest": latest,
            "out": out,
            "width": width,
        },
        {"BLOCK": block},
        num_warps=128 // chip.warp_size,
    )


def row_gather_counts(tokens: int, width: int, dtype: torch.dtype) -> Counts:
    """A row read and written, an index read, for each token."""
    row = width * dtype.itemsize
    return Counts(tokens * (row + 8), tokens * row, 0)


def _prepare(
    device: torch.device, chip: Chip, *, tokens: int, table_rows: int, width: int, ahead: bool
) -> Trial:
    table = torch.arange(table_rows * width, device=device).remainder(509).to(torch.bfloat16)
    table = table.view(table_rows, width)
    every = torch.arange(tokens, device=device)
    ids = every * 7919 % table_rows
    latest = every.flip(0) * 31 % table_rows if ahead else None
    if ahead:
        ids = torch.where(every % 2 == 0, ids, -1 - every)
    out = table.new_empty((tokens, width))

    def launch() -> Outputs:
        row_gather_launch(table, ids, latest, out, chip=chip).run()
        return (out,)

    return Trial(launch, lambda: (row_gather_reference(table, ids, latest),))


def _case(
    kernel: str,
    label: str,
    tokens: int,
    table_rows: int,
    width: int,
    *,
    ahead: bool = False,
    tiny: bool = False,
) -> Case:
    counts = row_gather_counts(tokens, width, torch.bfloat16)
    prepare = partial(_prepare, tokens=tokens, table_rows=table_rows, width=width, ahead=ahead)
    return Case(kernel, label, counts, prepare, tiny=tiny)


CASES = (
    _case("embedding gather", "Llama 3 8B, 32 tokens ahead", 32, 128_256, 4096, ahead=True),
    _case("embedding gather", "Llama 3 8B, 2048 tokens", 2048, 128_256, 4096),
    _case("logit row gather", "Llama 3 8B, 32 of 2048", 32, 2048, 4096),
    _case("embedding gather", "tiny", 9, 50, 70, ahead=True, tiny=True),
    _case("logit row gather", "tiny", 3, 9, 2100, tiny=True),
)
