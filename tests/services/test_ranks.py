"""A model over two processes: the tokens of one, plans told once, and a clear end when a process is gone."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from tests.engine.fused_rig import RerunGraphs, fused_runner
from tests.engine.reference_launches import reference_launches
from tests.engine.test_torch_runner import CONFIG, GREEDY, Answers, RandomCheckpoint, load
from torch import Tensor

from headway.engine.errors import ModelError, RankLostError
from headway.engine.interfaces import LaunchingRunner
from headway.engine.plan_wire import PlanDecoder, PlanEncoder
from headway.engine.ranked_loading import RankSettings
from headway.engine.ranked_runner import Follower, ranked
from headway.engine.shard import Shard
from headway.engine.values import Admitted, BlockCopy, Chunk, RequestKey, Sampling, StepPlan
from headway.kernels.host_arrays import int_list
from headway.services.ranks import RankedModel, load_ranked

SETTINGS = RankSettings(dtype="float32", kv_cache_bytes=400_000, block_size=4, max_model_len=80)
SAMPLINGS = {
    0: GREEDY,
    1: Sampling(temperature=0.9, seed=4, top_p=0.9),
    2: Sampling(temperature=0.0, repetition_penalty=1.2, logprobs=2),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama as a folder of Hugging Face's."""
    folder = tmp_path_factory.mktemp("model")
    checkpoint = RandomCheckpoint()
    save_file({name: checkpoint.tensor(name) for name in checkpoint.names()}, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": CONFIG.vocab_size,
        "hidden_size": CONFIG.hidden_size,
        "intermediate_size": CONFIG.intermediate_size,
        "num_hidden_layers": CONFIG.layer_count,
        "num_attention_heads": CONFIG.query_head_count,
        "num_key_value_heads": CONFIG.kv_head_count,
        "head_dim": CONFIG.head_dim,
        "rms_norm_eps": CONFIG.norm_eps,
        "rope_theta": 10000.0,
        "max_position_embeddings": CONFIG.max_position,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class Ends:
    """What a lost rank was said to be."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.came = threading.Event()

    def __call__(self, reason: str) -> None:
        self.reasons.append(reason)
        self.came.set()


@pytest.fixture
def ends() -> Ends:
    return Ends()


@pytest.fixture
def two(model: Path, ends: Ends) -> Iterator[RankedModel]:
    loaded = load_ranked(model, 2, torch.device("cpu"), SETTINGS, end=ends)
    yield loaded
    loaded.close()


@pytest.mark.timeout(120)
def test_two_processes_give_the_tokens_of_one_until_one_dies(two: RankedModel, ends: Ends) -> None:
    alone = load(kv_cache_bytes=800_000)
    for chunk_tokens in (1000, 5):
        expected = Answers(alone, chunk_tokens).run(SAMPLINGS, 10)
        assert Answers(two.runner, chunk_tokens, epoch=chunk_tokens).run(SAMPLINGS, 10) == expected
    assert two.kernels == "torch, 2 ranks"
    assert ends.reasons == []

    os.kill(two.ranks.processes[0].pid, signal.SIGKILL)
    assert ends.came.wait(20)
    with pytest.raises(RankLostError, match=r"rank 1 of 2 .* ended with signal SIGKILL; the worker cannot"):
        Answers(two.runner, 1000, epoch=7).run(SAMPLINGS, 1)
    assert len(ends.reasons) == 1


@pytest.mark.timeout(120)
def test_a_rank_that_dies_in_the_middle_of_a_step_ends_it(two: RankedModel) -> None:
    rank = two.ranks.processes[0]
    os.kill(rank.pid, signal.SIGSTOP)  # it gets the plan, and never comes to the first sum
    stop = threading.Timer(1.0, rank.kill)
    stop.start()
    with pytest.raises(RankLostError, match="rank 1 of 2"):
        Answers(two.runner).run(SAMPLINGS, 1)
    stop.join()


@pytest.mark.timeout(120)
def test_a_rank_ends_with_its_worker(two: RankedModel, ends: Ends) -> None:
    two.ranks.close()
    assert [process.returncode for process in two.ranks.processes] == [0]
    assert ends.reasons == []


def test_a_model_that_cannot_be_cut_is_refused_before_anything_starts(model: Path) -> None:
    with pytest.raises(ModelError, match="--tensor-parallel 3 does not divide this model"):
        load_ranked(model, 3, torch.device("cpu"), SETTINGS)


keys = st.builds(RequestKey, st.sampled_from("abc"), st.integers(0, 2))
copies = st.lists(st.builds(BlockCopy, st.integers(0, 9), st.integers(0, 9)), max_size=2).map(tuple)
samplings = st.builds(
    Sampling, temperature=st.floats(0, 2), stop_token_ids=st.frozensets(st.integers(0, 9)),
    logit_bias=st.lists(st.tuples(st.integers(0, 9), st.floats(-1, 1)), max_size=2).map(tuple),
    logprobs=st.none() | st.integers(0, 5),
)  # fmt: skip
tokens = st.lists(st.integers(-1, 400), min_size=1, max_size=4).map(tuple)
tables = st.lists(st.integers(0, 99), max_size=5).map(tuple)
plans = st.builds(
    StepPlan,
    step=st.integers(0, 2**40),
    chunks=st.lists(
        st.builds(Chunk, keys, st.integers(0, 99), tokens, tables, st.booleans(), st.integers(0, 2)),
        max_size=3, unique_by=lambda chunk: chunk.key,
    ).map(tuple),
    admitted=st.lists(st.builds(Admitted, keys, tokens, tokens, samplings), max_size=2).map(tuple),
    released=st.lists(keys, max_size=2).map(tuple),
    copies=copies, swaps_out=copies, swaps_in=copies,
    awaits_copies=st.booleans(),
)  # fmt: skip


@given(st.lists(st.tuples(plans, st.booleans()), max_size=5))
def test_plans_arrive_as_they_were_and_tables_are_replaced_only_when_they_change(
    told: list[tuple[StepPlan, bool]],
) -> None:
    encoder, decoder = PlanEncoder(), PlanDecoder()
    for plan, is_repeated in told:
        arrived = decoder.decode(encoder.encode(plan))
        assert arrived == plan
        if is_repeated and not plan.released:
            again = decoder.decode(encoder.encode(plan))
            for first, second in zip(arrived.chunks, again.chunks, strict=True):
                assert first.block_table is second.block_table


def test_a_step_whose_tables_are_known_is_told_in_few_bytes() -> None:
    encoder, table = PlanEncoder(), tuple(range(500))
    plan = StepPlan(1, (Chunk(RequestKey("a", 1), 7999, (5,), table, samples=True),))
    assert len(encoder.encode(plan)) > 2000
    grown = (*table, 500)
    assert len(encoder.encode(plan)) < 100
    assert len(encoder.encode(replace(plan, chunks=(plan.chunks[0]._replace(block_table=grown),)))) < 110


class Direct:
    """Messages that the follower obeys at once."""

    def __init__(self) -> None:
        self.follower: Follower | None = None
        self.sent = 0

    def send(self, message: bytes) -> None:
        self.sent += 1
        assert self.follower is not None
        self.follower.obey(message)

    def receive(self) -> bytes:
        raise NotImplementedError


def test_a_follower_launches_and_reads_what_rank_0_does() -> None:
    """With look-ahead's order: two steps under way, a token that only the devices know."""
    with reference_launches():
        messages, theirs = Direct(), fused_runner(CONFIG, graphs=RerunGraphs())
        messages.follower = Follower(theirs, messages)
        runner = ranked(fused_runner(CONFIG, graphs=RerunGraphs()), messages, nobody)
        assert isinstance(runner, LaunchingRunner)
        key, prompt, table = RequestKey("a", 0), (5, 6, 7), (0, 1, 2, 3)
        admitted = (Admitted(key, prompt, (), SAMPLINGS[1]),)
        runner.launch(StepPlan(1, (Chunk(key, 0, prompt, table, samples=True),), admitted))
        said: list[int] = []
        for step in range(2, 8):
            runner.launch(StepPlan(step, (Chunk(key, step + 1, (-1,), table, samples=True),)))
            said += [entry.token_id for entry in runner.collect().sampled]
        alone = fused_runner(CONFIG)
        expected = [
            alone.execute(StepPlan(1, (Chunk(key, 0, prompt, table, samples=True),), admitted)).sampled[0]
        ]
        for step in range(2, 7):
            chunk = Chunk(key, step + 1, (expected[-1].token_id,), table, samples=True)
            expected += alone.execute(StepPlan(step, (chunk,))).sampled
    assert said == [entry.token_id for entry in expected]
    assert messages.sent == 7, "one message per step"


def test_a_follower_that_chooses_other_tokens_ends() -> None:
    messages = Direct()
    messages.follower = Follower(load(), messages)
    runner = ranked(load(), messages, nobody)
    key = RequestKey("a", 0)
    chunk = Chunk(key, 0, (5, 6), (0, 1), samples=True)
    runner.execute(StepPlan(1, (chunk,), (Admitted(key, (5, 6), (), GREEDY),)))
    messages.follower._digest = b"another!"
    with pytest.raises(RankLostError, match="has chosen other tokens than rank 0"):
        runner.execute(StepPlan(2, (chunk,)))


def nobody(*, wait_seconds: float = 0.0) -> None:
    """Is lost."""


class ThreadGroup:
    """Two ranks in two threads."""

    size = 2

    def __init__(self, rank: int, parts: dict[int, Tensor], barrier: threading.Barrier) -> None:
        self.rank = rank
        self._parts = parts
        self._barrier = barrier

    def _all(self, part: Tensor) -> list[Tensor]:
        self._parts[self.rank] = part.clone()
        self._barrier.wait(30)
        parts = [self._parts[rank] for rank in range(2)]
        self._barrier.wait(30)
        return parts

    def add(self, part: Tensor) -> Tensor:
        return sum(self._all(part), start=torch.zeros_like(part))

    def add_in_order(self, part: Tensor) -> Tensor:
        return self.add(part)

    def join(self, part: Tensor) -> Tensor:
        return torch.cat(self._all(part), dim=1)

    def least(self, count: int) -> int:
        return count

    def told(self, message: bytes) -> bytes:
        return bytes(int_list(self._all(torch.tensor(list(message), dtype=torch.int64))[0]))


@pytest.mark.parametrize("head", ["shared", "whole"])
def test_the_gpus_kernels_over_two_ranks_compute_the_whole_models_logits(head: str) -> None:
    config = replace(CONFIG, qkv_bias=True, output_bias=True, vocab_size=300 if head == "shared" else 301)
    barrier, parts, found = threading.Barrier(2), dict[int, Tensor](), dict[int, Tensor]()
    key, prompt = RequestKey("a", 0), (5, 6, 7, 250, 9)
    plan = StepPlan(1, (Chunk(key, 0, prompt, (3, 1), samples=True),), (Admitted(key, prompt, (), GREEDY),))

    def compute(rank: int) -> None:
        shard = Shard(rank, 2, ThreadGroup(rank, parts, barrier))
        found[rank] = fused_runner(config, shard=shard).logits(plan)

    with reference_launches():
        whole = fused_runner(config).logits(plan)
        threads = [threading.Thread(target=compute, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert torch.equal(found[0], found[1])
    torch.testing.assert_close(found[0], whole, atol=1e-4, rtol=1e-4)
