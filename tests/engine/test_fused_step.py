"""Buckets, buffers, graphs and counts of the GPU's runner, each alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.test_torch_runner import CONFIG

from headway.engine.errors import InvariantError, ModelError
from headway.engine.fused_loading import attention_shape
from headway.engine.fused_step import GRAPH_TOKENS, Bucket, input_fields, pack_fused
from headway.engine.scaled_linear import STORED, ScaledKind, ScaledLinear
from headway.engine.shard import Shard
from headway.engine.step_buffers import Field, StepBuffers
from headway.engine.step_graphs import DECODE_MEETINGS, StepGraphs
from headway.engine.token_counts import KnownTokens, TokenCounts
from headway.engine.values import Admitted, Chunk, RequestKey, Sampling
from headway.kernels.fused_sampling import IN_PROMPT
from headway.kernels.host_arrays import int_list, int_rows
from headway.kernels.launch import H100

CPU = torch.device("cpu")
SHAPE = attention_shape(CONFIG, 4, torch.float32, CPU)

steps = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60), st.booleans()), min_size=1, max_size=40)
decodes = st.lists(st.tuples(st.just(1), st.integers(0, 90), st.just(True)), min_size=1, max_size=80)


def chunks_of(lengths: list[tuple[int, int, bool]]) -> list[Chunk]:
    return [
        Chunk(RequestKey(str(i), 0), before, (5,) * new, tuple(range(-(-(before + new) // 4))), samples)
        for i, (new, before, samples) in enumerate(lengths)
    ]


def bucket_of(lengths: list[tuple[int, int, bool]], *, has_graphs: bool = True) -> Bucket:
    chunks = chunks_of(lengths)
    tables = [np.array(chunk.block_table, dtype=np.int64) for chunk in chunks]
    packed = pack_fused(chunks, tables, [chunk.token_ids for chunk in chunks], SHAPE, H100)
    return packed.bucket(has_graphs=has_graphs)


@given(steps | decodes)
def test_a_bucket_holds_its_step_and_equals_that_of_a_step_of_its_size(
    lengths: list[tuple[int, int, bool]],
) -> None:
    bucket, exact = bucket_of(lengths), bucket_of(lengths, has_graphs=False)
    tokens, rows = sum(new for new, _, _ in lengths), sum(samples for _, _, samples in lengths)
    assert (exact.tokens, exact.rows, exact.is_kept) == (tokens, rows, False)
    assert bucket.is_kept is (tokens <= GRAPH_TOKENS)
    assert bucket.tokens >= tokens
    assert bucket.rows >= rows
    assert (bucket.rows == 0) is (rows == 0)
    assert bucket.items >= exact.items
    assert bucket.merges >= exact.merges if exact.is_split else bucket.merges == 0
    if bucket.is_kept and bucket.is_decode and tokens >= 16:
        assert bucket.tokens <= 1.5 * tokens


def test_all_decodes_up_to_256_requests_need_few_graphs() -> None:
    assert len({bucket_of([(1, 30, True)] * count) for count in range(1, 257)}) <= 20


def test_inputs_are_padded_with_what_changes_nothing() -> None:
    lengths = [(1, 30, True), (1, 11, True), (1, 2, True)]
    chunks = chunks_of(lengths)
    tables = [np.array(chunk.block_table, dtype=np.int64) for chunk in chunks]
    packed = pack_fused(chunks, tables, [(5,), (-2,), (9,)], SHAPE, H100)
    bucket = packed.bucket(has_graphs=True)
    fields, last = input_fields(bucket, packed.lines)
    placement = StepBuffers(1 << 16, CPU).place((*fields, last))
    for array in placement.on_device.values():
        assert array.data_ptr() % 16 == 0
        array.fill_(77)  # of a step before
    placement.upload(1, packed.content)
    arrays = placement.on_device
    assert int_list(arrays["token_ids"]) == [5, -2, 9, 0]
    assert int_list(arrays["positions"]) == [30, 11, 2, 0]
    assert int_list(arrays["slots"]) == [30, 11, 2, -1]
    assert int_rows(arrays["items"])[3:] == [[0, 0, 0, 0, 0, 0, -1]] * (bucket.items - 3)


@given(st.lists(st.integers(0, 9), max_size=6), st.lists(st.integers(0, 9), max_size=6))
def test_a_step_is_written_beside_the_one_that_is_still_copied(first: list[int], second: list[int]) -> None:
    buffers = StepBuffers(512, CPU)
    fields = (Field("a", torch.int64, (6,), padding=-1), Field("b", torch.int32, (6, 2)))
    placement = buffers.place(fields)

    def upload(piece: int, values: list[int]) -> None:
        pairs = np.array([[value, -value] for value in values], dtype=np.int32).reshape(-1, 2)
        placement.upload(piece, {"a": np.array(values, dtype=np.int64), "b": pairs})

    upload(0, first)
    copied = buffers._far[0].clone()
    upload(1, second)
    assert torch.equal(buffers._far[0], copied)
    assert int_list(placement.on_device["a"]) == second + [-1] * (6 - len(second))
    assert int_rows(placement.on_device["b"])[: len(second)] == [[value, -value] for value in second]


class Recorder:
    """Counts; a graph of it may be refused."""

    def __init__(self) -> None:
        self.captures = self.replays = 0

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.captures += 1

        def replay() -> None:
            self.replays += 1
            work()

        return replay


def test_a_bucket_is_recorded_after_its_meetings_and_each_step_runs_once() -> None:
    maker, runs = Recorder(), Counter[str]()
    graphs = StepGraphs[str](maker, most=2)

    def work(name: str) -> Callable[[], None]:
        def run() -> None:
            runs[name] += 1

        return run

    for name in "aaaabab":
        graphs.run(name, work(name), meetings=2)
    assert runs == {"a": 5, "b": 2}
    assert (maker.captures, maker.replays) == (1, 3)
    for name in "bcccaddd":  # c makes room, a is the one used longest ago when d comes
        graphs.run(name, work(name), meetings=2)
    assert runs == {"a": 6, "b": 3, "c": 3, "d": 3}
    assert len(graphs) == 2
    before = maker.captures
    graphs.forget(lambda name: name == "d")
    graphs.run("d", work("d"), meetings=2)  # met often enough before: recorded again at once
    assert (len(graphs), runs["d"], maker.captures) == (2, 4, before + 1)


def test_an_expected_bucket_is_replayed_from_its_first_step_on() -> None:
    maker, runs = Recorder(), list[str]()
    graphs = StepGraphs[str](maker)
    graphs.expect("a", lambda: runs.append("warm"))
    assert (len(graphs), maker.captures, runs) == (1, 1, ["warm"] * DECODE_MEETINGS)
    graphs.run("a", lambda: runs.append("step"), meetings=8)
    assert (maker.captures, maker.replays) == (1, 1)


def test_without_a_maker_every_step_is_launched_and_one_that_fails_is_not_counted() -> None:
    graphs, runs = StepGraphs[str](None), list[int]()
    for _ in range(5):
        graphs.run("a", lambda: runs.append(1), meetings=1)
    assert len(runs) == 5
    assert len(graphs) == 0
    maker = Recorder()
    graphs = StepGraphs[str](maker)

    def fail() -> None:
        raise InvariantError("no")

    for _ in range(3):
        with pytest.raises(InvariantError):
            graphs.run("a", fail, meetings=1)
    assert maker.captures == 0


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.booleans()), max_size=30))
def test_counts_are_those_of_the_tokens_before_the_one_to_choose(moves: list[tuple[int, int, bool]]) -> None:
    """Requests take turns on two slots; steps are repeated, guessed ahead, and forgotten."""
    counts = TokenCounts(7, CPU)
    counts.make_room(2)
    counts.counts = counts.counts[:2]
    said: dict[int, list[int]] = {}
    for who, token, is_repeated in moves:
        key, prompt = RequestKey(str(who), 0), (who, 6, 6)
        answer = said.setdefault(who, [])
        known = KnownTokens(Admitted(key, prompt, tuple(answer), Sampling()))
        for guessed in ((), (token,))[: 1 + is_repeated]:
            busy = {(key, 0), (key, len(guessed))}
            slot = counts.slot(key, known, len(answer) + len(guessed), guessed, busy)
            expected = Counter([*answer, *guessed])
            row = int_list(counts.counts[slot])
            assert [count & (IN_PROMPT - 1) for count in row] == [expected[t] for t in range(7)]
            assert [t for t in range(7) if row[t] & IN_PROMPT] == sorted({who, 6})
            counts.counts[slot, token] += 1  # what the kernel does with its choice
        if is_repeated and token == 3:
            counts.forget(key)
        if not is_repeated:
            answer.append(token)


def test_counts_of_tokens_that_nobody_knows_are_refused() -> None:
    counts = TokenCounts(7, CPU)
    counts.make_room(1)
    known = KnownTokens(Admitted(RequestKey("a", 0), (1,), (2,), Sampling()))
    with pytest.raises(InvariantError, match="1 are known"):
        counts.slot(RequestKey("a", 0), known, 2, (), set())


@pytest.mark.parametrize("kind", STORED)
def test_a_product_with_weights_of_one_byte_is_near_the_exact_one(kind: ScaledKind) -> None:
    torch.manual_seed(0)
    weight, bias, x = torch.randn(40, 64), torch.randn(40), torch.randn(3, 64)
    weight[7] = 0.0
    ours = ScaledLinear(weight.clone(), bias, kind)(x)
    exact = x @ weight.T + bias
    error = (ours - exact).norm() / exact.norm()
    assert float(error) < {"int8": 0.01, "fp8": 0.04}[kind]
    torch.testing.assert_close(ours[:, 7], bias[7].expand(3))


def test_a_model_that_cannot_be_cut_says_what_would_do() -> None:
    assert Shard(1, 2).config(CONFIG).query_head_count == 2
    with pytest.raises(ModelError, match="4 query heads, 2 key and value heads and an MLP of 48"):
        Shard(0, 3).config(CONFIG)
