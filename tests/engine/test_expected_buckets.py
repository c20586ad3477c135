"""What a GPU's runner has recorded before it serves is all that plain decodes can need, however long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.fused_rig import CPU, SMALL, RerunGraphs
from tests.engine.reference_launches import reference_launches
from tests.engine.test_torch_runner import GREEDY, RandomCheckpoint

from headway.engine.errors import ModelError
from headway.engine.expected_buckets import Expected
from headway.engine.fused_loading import GpuSettings, load_fused_runner
from headway.engine.fused_runner import FusedRunner
from headway.engine.fused_step import GRAPH_ITEMS, GRAPH_TOKENS, MIXED_TOKENS, pack_fused
from headway.engine.step_graphs import MOST_GRAPHS, GraphMaker, Replay
from headway.engine.values import Admitted, Chunk, RequestKey, Sampling, StepPlan
from headway.kernels.attention_plan import AttentionShape
from headway.kernels.launch import CHIPS, Chip
from headway.kernels.matmul_tiles import row_class
from headway.kernels.scaled_matmul import matmul_tile

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


@pytest.mark.parametrize("has_graphs", [True, False])
@pytest.mark.parametrize("most_rows", [1, 32])
@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_every_form_of_product_that_a_step_with_chunks_may_take_is_compiled_before_it_serves(
    chip: Chip, most_rows: int, has_graphs: bool
) -> None:
    def form(rows: int) -> object:
        """What Triton compiles apart: a tile, chosen by the class, and what is known of the number."""
        return row_class(rows), matmul_tile(rows, 2, chip), rows == 1, rows % 16 == 0

    shape = AttentionShape(8, 2, 128, 16, None, torch.bfloat16, CPU)
    expected = Expected(shape, chip, most_rows, 8192, has_graphs=has_graphs)
    compiled = {form(bucket.tokens) for bucket in (*expected.forms(), *expected.decodes())}
    for tokens in range(2, 1100):
        is_padded = has_graphs and tokens <= GRAPH_TOKENS
        rows = next(size for size in MIXED_TOKENS if size >= tokens) if is_padded else tokens
        assert form(rows) in compiled, f"{tokens} tokens"


ROWS, LONGEST_SERVED, BLOCK = 3, 1100, 16
DEFAULT = GpuSettings(max_sequences=ROWS)


def loaded(graphs: GraphMaker | None, gpu: GpuSettings = DEFAULT) -> FusedRunner:
    return load_fused_runner(
        RandomCheckpoint(replace(SMALL, max_position=LONGEST_SERVED)),
        kv_cache_bytes=4 << 20,
        dtype="float32",
        device=str(CPU),
        block_size=BLOCK,
        gpu=gpu,
        graphs=graphs,
    )


def decode(contexts: list[int], sampling: Sampling = GREEDY, *, drafts: int = 0) -> StepPlan:
    """Of requests that have come so far; nobody looks at the keys of their blocks."""
    keys = [RequestKey(f"{i}", 0) for i in range(len(contexts))]
    return StepPlan(
        1,
        tuple(
            Chunk(
                key,
                n - 1,
                (5,) * (1 + drafts),
                tuple(range(-(-(n + drafts) // BLOCK))),
                samples=True,
                draft_tokens=drafts,
            )
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


@pytest.mark.parametrize("drafts", [8, 64])
def test_guesses_of_every_request_leave_the_graphs_that_were_recorded_alone(
    drafts: int, launches: list[str]
) -> None:
    graphs = RerunGraphs()
    runner = loaded(graphs, GpuSettings(max_sequences=8, draft_tokens=drafts))
    recorded = runner.graph_count
    assert recorded > 0
    room = 512 // 8 - 1  # rows of logits that a step which is kept may have
    for plan in (decode([40] * 8, drafts=min(drafts, room)), decode([40] * 8)):
        runner.execute(plan)
        runner.execute(StepPlan(2, (), released=tuple(chunk.key for chunk in plan.chunks)))
    assert (runner.graph_count, len(graphs.recorded), graphs.replays) == (recorded, recorded, 1)


class Exhausted:
    """There is memory for the launches, and none for graphs of them."""

    def capture(self, work: Callable[[], None]) -> Replay:
        work()
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")


def test_no_memory_for_graphs_beside_the_cache_is_told_as_what_to_lower(launches: list[str]) -> None:
    with pytest.raises(
        ModelError, match=r"a KV cache of 0\.00 GiB: lower --kv-cache or --max-sequences \(CUDA"
    ):
        loaded(Exhausted())


def test_no_memory_for_steps_without_graphs_is_told_as_what_to_lower(
    launches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def expect(*_: object, **__: object) -> None:
        raise RuntimeError("Triton Error [CUDA]: out of memory")

    monkeypatch.setattr(FusedRunner, "expect", expect)
    with pytest.raises(ModelError, match="lower --kv-cache or --max-sequences"):
        loaded(None, GpuSettings(max_sequences=1, has_graphs=False))


def test_what_is_run_beforehand_writes_no_key_of_anybody(launches: list[str]) -> None:
    runner = loaded(RerunGraphs())
    with torch.inference_mode():
        runner._cache.pools.fill_(7.0)
    expected = Expected(runner._shape, runner._chip, 20, LONGEST_SERVED)
    runner.expect((*expected.forms(), *expected.decodes()))
    assert bool((runner._cache.pools == 7.0).all())
    assert runner.graph_count == len(expected.decodes())


def test_a_runner_without_graphs_has_split_merged_and_masked_before_it_serves(launches: list[str]) -> None:
    runner = loaded(None, GpuSettings(max_sequences=1, has_graphs=False))
    assert runner.graph_count == 0
    assert {"_split_merge_kernel", "pick_kernel", "_token_mask_kernel"} <= set(launches)
