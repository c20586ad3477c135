"""What a GPU's runner has recorded before it serves is all that plain decodes can need, however long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.fused_rig import CPU, SMALL, RerunGraphs
from tests.engine.reference_launches import reference_launches
from tests.engine.test_torch_runner import GREEDY, RandomCheckpoint

from headway.engine.expected_buckets import Expected
from headway.engine.fused_loading import GpuSettings, load_fused_runner
from headway.engine.fused_runner import FusedRunner
from headway.engine.fused_step import GRAPH_ITEMS, pack_fused
from headway.engine.step_graphs import MOST_GRAPHS
from headway.engine.values import Admitted, Chunk, RequestKey, Sampling, StepPlan
from headway.kernels.attention_plan import AttentionShape
from headway.kernels.launch import CHIPS, Chip

pytest.importorskip("triton")

shapes = st.builds(
    lambda kv_heads, group, window, dtype: AttentionShape(
        group * kv_heads, kv_heads, 64, 16, window, dtype, CPU
    ),
    st.sampled_from([1, 2, 8]),
    st.sampled_from([1, 3, 8]),
    st.none() | st.integers(1, 5000),
    st.sampled_from([torch.bfloat16, torch.float32]),
)
LONGEST = 300_000


@given(
    shapes,
    st.sampled_from(CHIPS),
    st.lists(st.integers(1, LONGEST) | st.integers(1, 2000), min_size=1, max_size=5),
    st.integers(1, 110),
    st.booleans(),
)
def test_every_decode_over_contexts_up_to_the_longest_has_a_bucket_that_is_expected(
    shape: AttentionShape, chip: Chip, contexts: list[int], copies: int, deterministic: bool
) -> None:
    contexts = (contexts * copies)[:512]
    chunks = [Chunk(RequestKey(str(i), 0), n - 1, (5,), (), True) for i, n in enumerate(contexts)]
    tables = [np.zeros(-(-n // 16), dtype=np.int64) for n in contexts]
    packed = pack_fused(chunks, tables, [(5,)] * len(chunks), shape, chip, deterministic=deterministic)
    expected = Expected(shape, chip, len(contexts), max(contexts), deterministic).decodes()
    bucket = packed.bucket(has_graphs=True)
    assert bucket in expected or not bucket.is_kept
    assert bucket.is_kept is (len(packed.attention.items) <= GRAPH_ITEMS)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
@pytest.mark.parametrize("kv_heads", [1, 8])
def test_graphs_of_decodes_leave_room_for_those_of_mixed_steps(chip: Chip, kv_heads: int) -> None:
    shape = AttentionShape(4 * kv_heads, kv_heads, 128, 16, None, torch.bfloat16, CPU)

    def count(rows: int, longest: int, *, deterministic: bool) -> int:
        return len(Expected(shape, chip, rows, longest, deterministic).decodes())

    assert count(32, 8192, deterministic=False) == 14, "docs/gpu.md says so"
    assert count(32, 131_072, deterministic=False) <= 24, "docs/gpu.md says so"
    assert count(512, 1 << 20, deterministic=True) <= MOST_GRAPHS // 2


ROWS, LONGEST_SERVED, BLOCK = 3, 1100, 16


def loaded(graphs: RerunGraphs) -> FusedRunner:
    return load_fused_runner(
        RandomCheckpoint(replace(SMALL, max_position=LONGEST_SERVED)),
        kv_cache_bytes=4 << 20,
        dtype="float32",
        device=str(CPU),
        block_size=BLOCK,
        gpu=GpuSettings(max_sequences=ROWS),
        graphs=graphs,
    )


def decode(contexts: list[int], sampling: Sampling = GREEDY) -> StepPlan:
    """Of requests that have come so far; nobody looks at the keys of their blocks."""
    keys = [RequestKey(f"{i}", 0) for i in range(len(contexts))]
    return StepPlan(
        1,
        tuple(
            Chunk(key, n - 1, (5,), tuple(range(-(-n // BLOCK))), samples=True)
            for key, n in zip(keys, contexts, strict=True)
        ),
        tuple(Admitted(key, (5,) * n, (), sampling) for key, n in zip(keys, contexts, strict=True)),
    )


@pytest.fixture
def launches() -> Iterator[list[str]]:
    with reference_launches() as launched:
        yield launched


def test_a_loaded_runner_records_no_decode_while_it_serves(launches: list[str]) -> None:
    graphs = RerunGraphs()
    runner = loaded(graphs)
    assert runner.max_model_len == LONGEST_SERVED
    before, steps = len(graphs.recorded), 0
    launches.clear()
    for rows in range(1, ROWS + 1):
        for longest in (1, 255, 256, 257, 258, 700, LONGEST_SERVED):
            for contexts in ([longest] * rows, [longest] + [3] * (rows - 1)):
                for _ in range(3):
                    plan = decode(contexts)
                    runner.execute(plan)
                    runner.execute(StepPlan(2, (), released=tuple(chunk.key for chunk in plan.chunks)))
                    steps += 1
    assert "_split_merge_kernel" in launches, "some contexts were split"
    assert (len(graphs.recorded), graphs.replays) == (before, steps)


def test_first_penalties_and_likely_tokens_leave_the_graphs_of_others_alone(launches: list[str]) -> None:
    graphs = RerunGraphs()
    runner = loaded(graphs)
    before = len(graphs.recorded)
    for sampling in (Sampling(repetition_penalty=1.2), Sampling(logprobs=20), GREEDY):
        plan = decode([40, 30], sampling)
        runner.execute(plan)
        runner.execute(StepPlan(2, (), released=tuple(chunk.key for chunk in plan.chunks)))
    assert (len(graphs.recorded), graphs.replays) == (before, 1)


def test_what_is_run_beforehand_writes_no_key_of_anybody(launches: list[str]) -> None:
    runner = loaded(RerunGraphs())
    with torch.inference_mode():
        runner._cache.pools.fill_(7.0)
    expected = Expected(runner._shape, runner._chip, 20, LONGEST_SERVED)
    runner.expect((*expected.forms(), *expected.decodes()))
    assert bool((runner._cache.pools == 7.0).all())
    assert runner.graph_count == len(expected.decodes())


def test_a_runner_without_graphs_has_split_merged_and_masked_before_it_serves(launches: list[str]) -> None:
    runner = load_fused_runner(
        RandomCheckpoint(replace(SMALL, max_position=LONGEST_SERVED)),
        kv_cache_bytes=4 << 20,
        dtype="float32",
        device=str(CPU),
        block_size=BLOCK,
        gpu=GpuSettings(max_sequences=1, has_graphs=False),
    )
    assert runner.graph_count == 0
    assert {"_split_merge_kernel", "pick_kernel", "_token_mask_kernel"} <= set(launches)
