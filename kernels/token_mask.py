"""Only what a mask allows may be chosen: 32 tokens a word, for some rows of the logits.

    logits[rows[i], v] = −inf   where bit v mod 32 of bits[i, v div 32] is 0

logits: float32 [n, vocab], changed in place; bits: int32 [masked, words]; rows: int32 [masked], below 0:
none.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from headway.kernels.cases import Case, Outputs, Trial, noise
from headway.kernels.launch import Chip, Counts, Launch
from headway.kernels.triton_language import Operand, constexpr, jit, tl

BLOCK = 2048
"""Tokens per program."""
WORD_BITS = 32


def token_mask_reference(logits: Tensor, bits: Tensor, rows: Tensor) -> Tensor:
    """The formula, as new logits."""
    shifts = torch.arange(WORD_BITS, device=bits.device, dtype=torch.int32)
    allowed = ((bits.unsqueeze(-1) >> shifts) & 1).flatten(1)[:, : logits.shape[1]] == 1
    masked = logits.clone()
    is_meant = rows >= 0
    places = rows[is_meant].long()
    masked[places] = masked[places].masked_fill(~allowed[is_meant], float("-inf"))
    return masked


@jit
def _token_mask_kernel(
    logits: Operand,
    row_stride: Operand,
    bits: Operand,
    words: Operand,
    rows: Operand,
    vocab: Operand,
    BLOCK: constexpr,
) -> None:
    line = tl.program_id(0)
    row = tl.load(rows + line)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < vocab
    word = tl.load(bits + line * words + columns // 32, mask=inside, other=-1)
    is_forbidden = ((word >> (columns % 32)) & 1) == 0
    places = logits + row.to(tl.int64) * row_stride + columns
    tl.store(places, float("-inf"), mask=inside & is_forbidden & (row >= 0))


def token_mask_launch(logits: Tensor, bits: Tensor, rows: Tensor) -> Launch:
    """logits' and bits' rows dense."""
    vocab = logits.shape[1]
    return Launch(
        _token_mask_kernel,
        (len(rows), -(-vocab // BLOCK)),
        {
            "logits": logits,
            "row_stride": logits.stride(0),
            "bits": bits,
            "words": bits.stride(0),
            "rows": rows,
            "vocab": vocab,
        },
        {"BLOCK": BLOCK},
        num_warps=4,
    )


def token_mask_counts(rows: int, vocab: int) -> Counts:
    """A bit read and, mostly, a logit written for each token."""
    return Counts(rows * (vocab // 8 + 4), rows * vocab * 4, 0)


def _prepare(device: torch.device, chip: Chip, *, rows: int, vocab: int) -> Trial:
    del chip  # the same launch on all of them
    start = noise((rows + 1, vocab), torch.float32, device, seed=0)
    logits = start.clone()
    words = -(-vocab // WORD_BITS)
    bits = (torch.arange(rows * words, device=device) * 2654435761).to(torch.int32).view(rows, words)
    places = torch.arange(rows, 0, -1, device=device, dtype=torch.int32)
    places[:1] = -1

    def launch() -> Outputs:
        logits.copy_(start)
        token_mask_launch(logits, bits, places).run()
        return (logits,)

    return Trial(launch, lambda: (token_mask_reference(start, bits, places),))


def _case(label: str, rows: int, vocab: int, *, tiny: bool = False) -> Case:
    prepare = partial(_prepare, rows=rows, vocab=vocab)
    return Case("token mask", f"{label}, {rows} rows", token_mask_counts(rows, vocab), prepare, tiny=tiny)


CASES = (
    _case("Llama 3 8B", 32, 128_256),
    _case("SmolLM2 135M", 64, 49_152),
    _case("tiny", 3, 2100, tiny=True),
)
