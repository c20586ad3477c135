"""``deterministic`` on a GPU's runner, sums interpreted: the same bits in all circumstances."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import pytest
import torch
from tests.engine.circumstances import Circumstances, Entry, resumed, tell
from tests.engine.fused_rig import SMALL, RerunGraphs, fused_runner
from tests.engine.reference_launches import reference_launches
from tests.engine.test_fused_runner import SAMPLINGS, AnyBytes
from tests.engine.test_torch_runner import PROMPTS

from headway.engine.fused_runner import FusedRunner
from headway.engine.kv_number import GpuKvCacheDType
from headway.engine.preemption import Mode
from headway.engine.product_forms import GpuQuantization
from headway.engine.values import RequestSpec
from headway.kernels import varlen_batch

pytest.importorskip("triton")

BLOCKS = 22
"""Of 4 tokens: the prompts fill 21, prompts and answers 24."""
SUMS = frozenset(
    {
        "_fixed_matmul_kernel", "_matmul_kernel", "sum_kernel", "_quantize_rows_kernel",
        "_varlen_attention_kernel", "_split_merge_kernel", "_log_total_kernel",
    }
)  # fmt: skip
"""Kernels whose sums could depend on the batch; those row by row are in ``test_batch_invariance``."""


class Form(NamedTuple):
    """Numbers of activations, weights, keys and values."""

    dtype: torch.dtype
    quantization: GpuQuantization = "none"
    kv_cache_dtype: GpuKvCacheDType = "auto"


FORMS = {
    "bfloat16": Form(torch.bfloat16),
    "float32": Form(torch.float32),
    "fp8 by fp8, fp8 keys and values": Form(torch.bfloat16, "fp8-w8a8", "fp8"),
}


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(varlen_batch, "FIXED_SPLIT", 32)  # so that short contexts are split
    with reference_launches(interpreted=SUMS):
        yield
    torch.set_num_threads(before)


def runner_of(form: Form, blocks: int = 100, graphs: RerunGraphs | None = None) -> FusedRunner:
    return fused_runner(
        SMALL,
        form.dtype,
        quantization=form.quantization,
        kv_cache_dtype=form.kv_cache_dtype,
        is_deterministic=True,
        blocks=blocks,
        host_slots=60,
        graphs=graphs,
    )


def requests() -> list[RequestSpec]:
    return [
        RequestSpec(
            f"r{i}",
            0,
            PROMPTS[i + 2] + PROMPTS[i][:10],
            replace(SAMPLINGS[i + 1], seed=i, ignore_eos=True),
            4,
        )
        for i in range(3)
    ]


@cache
def alone(name: str) -> dict[str, list[Entry]]:
    return tell(runner_of(FORMS[name]), AnyBytes(), requests(), Circumstances()).answers


@pytest.mark.parametrize("name", FORMS)
def test_answers_are_the_same_bits_in_company_and_in_chunks(name: str) -> None:
    under = Circumstances(sequences=3, step_tokens=19, steps_apart=2, is_reversed=True)
    assert tell(runner_of(FORMS[name]), AnyBytes(), requests(), under).answers == alone(name)


def test_answers_from_padded_steps_launched_ahead_are_the_same_bits() -> None:
    under, graphs = Circumstances(sequences=3, step_tokens=128, looks_ahead=True), RerunGraphs()
    runner = runner_of(FORMS["bfloat16"], graphs=graphs)
    assert tell(runner, AnyBytes(), requests(), under).answers == alone("bfloat16")
    assert graphs.recorded


@pytest.mark.parametrize("mode", list(Mode))
def test_who_gave_way_says_the_same_bits_as_undisturbed(mode: Mode) -> None:
    under = Circumstances(sequences=3, step_tokens=64, gives_way=mode)
    told = tell(runner_of(FORMS["bfloat16"], blocks=BLOCKS), AnyBytes(), requests(), under)
    assert told.preemptions[mode] > 0
    assert told.answers == alone("bfloat16")


def test_another_worker_goes_on_with_the_same_bits() -> None:
    whole = alone("bfloat16")
    specs = [resumed(spec, whole[spec.request_id], 1 + i % 3) for i, spec in enumerate(requests())]
    rest = tell(runner_of(FORMS["bfloat16"]), AnyBytes(), specs, Circumstances(sequences=2)).answers
    assert rest == {f"r{i}": whole[f"r{i}"][1 + i % 3 :] for i in range(3)}
