"""Log-probabilities of the choice and of the most likely tokens whose bits are the row's own.

    total[r] = m + ln Σ_i e^(logits[r, i] − m)       m = max_i logits[r, i], added tile by tile in order
    picked[r] = logits[r, chosen[r]] − total[r]

``kernels.sampling.log_probabilities`` is the same by torch, whose sums on a GPU are divided by the number of
rows, and whose ``topk`` takes any of several equal ones: here they come in the order of their ids.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from headway.kernels.cases import Case, Outputs, Trial, noise
from headway.kernels.launch import Chip, Counts, Launch
from headway.kernels.triton_language import Operand, constexpr, jit, tl

TILE = 2048
ID_BITS = 32


def log_total_reference(logits: Tensor) -> Tensor:
    """The formula."""
    return logits.double().logsumexp(dim=-1).float()


def row_log_probabilities(
    logits: Tensor, chosen: Tensor, top_count: int, *, chip: Chip
) -> tuple[Tensor, Tensor, Tensor]:
    """(chosen [rows], top values [rows, top_count], top ids) of float32 logits, best first."""
    total = logits.new_empty(len(logits))
    log_total_launch(logits, total, chip=chip).run()
    picked = logits.gather(1, chosen.unsqueeze(1)).squeeze(1) - total
    ids = _most_likely(logits, top_count)
    return picked, logits.gather(1, ids) - total.unsqueeze(1), ids


def _most_likely(logits: Tensor, count: int) -> Tensor:
    """Of equals the smaller ids first: no two keys are equal, so there is one answer."""
    bits = logits.view(torch.int32)
    # As an integer a negative float is the larger the smaller it is: its other bits are turned.
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
    places = torch.arange(logits.shape[1], device=logits.device)
    keys = (ordered << ID_BITS) | ((1 << ID_BITS) - 1 - places)
    best = keys.topk(count, dim=-1).values
    return (1 << ID_BITS) - 1 - (best & ((1 << ID_BITS) - 1))


@jit
def _log_total_kernel(
    logits: Operand, row_stride: Operand, vocab: Operand, out: Operand, TILE: constexpr
) -> None:
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, TILE)
    largest = tl.full([TILE], float("-inf"), tl.float32)
    for start in range(0, vocab, TILE):
        inside = start + columns < vocab
        values = tl.load(logits + row * row_stride + start + columns, mask=inside, other=float("-inf"))
        largest = tl.maximum(largest, values)
    peak = tl.max(largest, axis=0)
    sums = tl.zeros([TILE], tl.float32)
    for start in range(0, vocab, TILE):
        inside = start + columns < vocab
        values = tl.load(logits + row * row_stride + start + columns, mask=inside, other=float("-inf"))
        sums += tl.exp(values - peak)
    tl.store(out + row, peak + tl.log(tl.sum(sums, axis=0)))


def log_total_launch(logits: Tensor, out: Tensor, *, chip: Chip) -> Launch:
    """logits [rows, vocab] float32, rows dense; out [rows] float32."""
    return Launch(
        _log_total_kernel,
        (len(logits),),
        {"logits": logits, "row_stride": logits.stride(0), "vocab": logits.shape[1], "out": out},
        {"TILE": TILE},
        num_warps=256 // chip.warp_size,
    )


def log_total_counts(rows: int, vocab: int) -> Counts:
    """Logits read once (the second time they are in the cache); a maximum, an e^x and an add for each."""
    return Counts(4 * rows * vocab, 4 * rows, 3 * rows * vocab)


def _prepare(device: torch.device, chip: Chip, *, rows: int, vocab: int) -> Trial:
    logits = noise((rows, vocab), torch.float32, device, seed=0) * 4
    out = torch.empty(rows, device=device)

    def launch() -> Outputs:
        log_total_launch(logits, out, chip=chip).run()
        return (out,)

    return Trial(launch, lambda: (log_total_reference(logits),))


def _case(label: str, rows: int, vocab: int, *, tiny: bool = False) -> Case:
    return Case(
        "log-probability total",
        label,
        log_total_counts(rows, vocab),
        partial(_prepare, rows=rows, vocab=vocab),
        tiny=tiny,
        absolute_tolerance=2e-5,
    )


CASES = (
    _case("Llama 3, 32 rows", 32, 128_256),
    _case("tiny", 3, 2500, tiny=True),
)
