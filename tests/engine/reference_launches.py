"""Every launch of the GPU's runner as its torch reference: the runner's own logic, a thousand times faster.

Triton's interpreter takes 10 ms per program. That kernels equal their references is tested in tests/kernels;
here the references take their place, with the launches' own arguments, buckets, padding and all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from headway.kernels.fused_sampling import RowPenalties, RowSampling
from headway.kernels.gated_activation import gated_activation_reference
from headway.kernels.host_arrays import int_rows
from headway.kernels.launch import Launch
from headway.kernels.rms_norm import add_rms_norm_reference, rms_norm_reference
from headway.kernels.rope_kv_write import HeadNorms, RotaryRows, rope_kv_write_reference
from headway.kernels.row_gather import row_gather_reference
from headway.kernels.row_log_probabilities import log_total_reference
from headway.kernels.sampling_launches import fused_sampling_reference, penalised_logits
from headway.kernels.token_mask import token_mask_reference
from headway.kernels.varlen_attention import PagedCache

Arguments = dict[str, Any]


@contextmanager
def reference_launches(*, interpreted: frozenset[str] = frozenset()) -> Iterator[list[str]]:
    """Launches by reference from here on, but for some; yields the kernels' names as they are launched."""
    launched: list[str] = []
    sampling, run_kernel = _Sampling(), Launch.run
    runs: dict[str, Callable[[Arguments, Arguments], None]] = {
        "_row_gather_kernel": _gather,
        "_rms_norm_kernel": _norm,
        "_rope_kv_write_kernel": _rope,
        "_varlen_attention_kernel": _attend,
        "_split_merge_kernel": _nothing,
        "_gated_activation_kernel": _activate,
        "statistics_kernel": sampling.penalise,
        "candidates_kernel": sampling.remember,
        "threshold_kernel": sampling.remember,
        "weights_kernel": _nothing,
        "pick_kernel": sampling.pick,
        "_token_mask_kernel": _mask,
        "_log_total_kernel": _log_total,
    }

    def run(launch: Launch) -> None:
        name = str(launch.kernel.fn.__name__)
        launched.append(name)
        if name in interpreted:
            run_kernel(launch)
        elif 0 not in launch.grid:
            runs[name](dict(launch.arguments), dict(launch.constants))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Launch, "run", run)
        yield launched


def _nothing(_arguments: Arguments, _constants: Arguments) -> None:
    """Its work is done by another one here."""


def _gather(given: Arguments, _: Arguments) -> None:
    given["out"].copy_(row_gather_reference(given["table"], given["ids"], given["latest"]))


def _mask(given: Arguments, _: Arguments) -> None:
    given["logits"].copy_(token_mask_reference(given["logits"], given["bits"], given["rows"]))


def _log_total(given: Arguments, _: Arguments) -> None:
    given["out"].copy_(log_total_reference(given["logits"]))


def _norm(given: Arguments, constants: Arguments) -> None:
    if constants["ADD"]:
        out, total = add_rms_norm_reference(given["x"], given["residual"], given["weight"], given["eps"])
        given["total"].copy_(total)
        given["out"].copy_(out)
    else:
        given["out"].copy_(rms_norm_reference(given["x"], given["weight"], given["eps"]))


def _rope(given: Arguments, _: Arguments) -> None:
    norms = None
    if given["query_weight"] is not None:
        norms = HeadNorms(given["query_weight"], given["key_weight"], given["eps"])
    rows = RotaryRows(given["cos_table"], given["sin_table"], given["positions"])
    cache = PagedCache(*(given[name] for name in ("key_pool", "value_pool", "key_scales", "value_scales")))
    given["query"].copy_(rope_kv_write_reference(given["qkv"], rows, cache, given["slots"], norms))


def _activate(given: Arguments, constants: Arguments) -> None:
    given["out"].copy_(
        gated_activation_reference(given["gate_up"], "silu" if constants["SILU"] else "gelu_tanh")
    )


def _attend(given: Arguments, constants: Arguments) -> None:
    """Each token over all keys of all items that hold it."""
    query, tables, size, window = (
        given["query"],
        given["tables"],
        constants["BLOCK_SIZE"],
        constants["WINDOW"],
    )
    keys_of: dict[int, tuple[int, int, list[int]]] = {}
    for line, start, count, first, key_start, key_end, _ in int_rows(given["items"]):
        for offset in range(count):
            position = first + offset
            seen_from = 0 if window is None else max(0, position - window + 1)
            _, _, keys = keys_of.setdefault(start + offset, (line, position, []))
            keys += range(max(key_start, seen_from), min(key_end, position + 1))
    for token, (line, _, keys) in keys_of.items():
        places = torch.tensor(keys)
        blocks = tables.view(-1)[line * tables.shape[1] + places // size].long()
        key, value = (given[pool][blocks, :, places % size].float() for pool in ("key_pool", "value_pool"))
        grouped = query[token].float().view(key.shape[1], -1, key.shape[2])  # [kv_heads, group, d]
        scores = torch.einsum("hgd,khd->hgk", grouped, key) * given["scale"]
        mixed = torch.einsum("hgk,khd->hgd", scores.softmax(dim=-1), value)
        given["out"][token] = mixed.reshape(query[token].shape).to(query.dtype)


class _Sampling:
    """The five launches that choose tokens; each brings some of what the definition takes."""

    def __init__(self) -> None:
        self._given: Arguments = {}

    def penalise(self, given: Arguments, _: Arguments) -> None:
        self._given = given
        if given["counts"] is not None:
            names = ("counts", "slots", "repetition", "presence", "frequency")
            penalties = RowPenalties(**{name: given[name] for name in names})
            given["logits"].copy_(penalised_logits(given["logits"], penalties))

    def remember(self, given: Arguments, _: Arguments) -> None:
        self._given = {**self._given, **given}

    def pick(self, given: Arguments, _: Arguments) -> None:
        found = {**self._given, **given}
        names = ("temperature", "top_k", "top_p", "floor", "seeds", "positions")
        tokens, _logprobs = fused_sampling_reference(
            found["logits"], RowSampling(**{name: found[name] for name in names})
        )
        given["chosen"].copy_(tokens)
        if given["counts"] is not None:
            for slot, token in zip(given["slots"].tolist(), tokens.tolist(), strict=True):
                if slot >= 0:
                    given["counts"][slot, token] += 1
