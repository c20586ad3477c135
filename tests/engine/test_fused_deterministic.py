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
from headway.engine.values import Admitted, Chunk, RequestKey, RequestSpec, Sampling, StepPlan
from headway.kernels import varlen_batch
from headway.kernels.launch import H100

pytest.importorskip("triton")

BLOCKS = 22
"""Of 4 tokens: the prompts fill 21, prompts and answers 24."""
CHIP = replace(H100, processors=4)
"""Few: split decodes are padded to the items that fill the chip, and the interpreter runs each of them."""
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
        chip=CHIP,
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


def first_tokens(runner: FusedRunner, prompts: dict[int, tuple[int, ...]], cut: int) -> dict[str, object]:
    """What these prompts are answered together, one token each, with the first ``cut`` tokens in a step
    before."""
    keys = {row: RequestKey(f"{row}", 0) for row in prompts}
    sampling = Sampling(temperature=1.0, top_p=0.95, seed=7, logprobs=3)
    admitted = tuple(Admitted(keys[row], prompt, (), sampling) for row, prompt in prompts.items())
    sampled: dict[str, object] = {}
    for step, (first, last) in enumerate(((0, cut), (cut, None)) if cut else ((0, None),)):
        chunks = tuple(
            Chunk(keys[row], first, prompt[first:last], tuple(range(20 * row, 20 * row + 20)), last is None)
            for row, prompt in prompts.items()
        )
        told = runner.execute(StepPlan(step, chunks, admitted if step == 0 else ()))
        sampled |= {entry.key.request_id: tuple(entry)[1:] for entry in told.sampled}
    runner.execute(StepPlan(2, (), released=tuple(keys.values())))
    return sampled


@pytest.mark.parametrize(
    ("form", "length"),
    [
        (Form(torch.bfloat16, "int8"), 6),
        (Form(torch.bfloat16, "fp8"), 6),
        (Form(torch.bfloat16, "int8-w8a8"), 6),
        (Form(torch.bfloat16, "none", "int8"), 36),  # longer than a split
    ],
    ids=lambda value: "-".join(value[1:]) if isinstance(value, Form) else str(value),
)
def test_tokens_of_every_form_are_the_same_bits_alone_in_chunks_and_in_company(
    form: Form, length: int
) -> None:
    runner = runner_of(form)
    prompts = {row: tuple((13 * at + 7 * row) % 290 + 5 for at in range(length + row)) for row in range(3)}
    alone = first_tokens(runner, {0: prompts[0]}, cut=0)
    assert first_tokens(runner, {0: prompts[0]}, cut=length // 2 - 1) == alone
    assert first_tokens(runner, prompts, cut=0)["0"] == alone["0"]


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
