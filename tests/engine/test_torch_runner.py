"""What the torch runner promises its scheduler, on a tiny random model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from headway.engine.compute_dtype import compute_dtype
from headway.engine.errors import InvariantError, ModelError
from headway.engine.interfaces import Runner, Tokenizer
from headway.engine.model_config import Architecture, ModelConfig, RopeConfig
from headway.engine.scripted import ByteTokenizer
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import Admitted, Chunk, RequestKey, Sampled, Sampling, StepPlan
from headway.engine.weight_shapes import weight_shapes

CONFIG = ModelConfig(
    architecture=Architecture.LLAMA,
    vocab_size=300,
    hidden_size=32,
    intermediate_size=48,
    layer_count=2,
    query_head_count=4,
    kv_head_count=2,
    head_dim=8,
    norm_eps=1e-5,
    rope=RopeConfig(),
    max_position=96,
    tied_embeddings=True,
    eos_token_ids=frozenset({2}),
)
GREEDY = Sampling(temperature=0.0)
PROMPTS = tuple(tuple((7 * i + 13 * j) % 290 + 5 for j in range(4 + 5 * i)) for i in range(6))


class RandomCheckpoint:
    """A checkpoint whose weights come from a seed."""

    def __init__(self, config: ModelConfig = CONFIG) -> None:
        self.config = config

    def names(self) -> Sequence[str]:
        return list(weight_shapes(self.config))

    def tensor(self, name: str) -> Tensor:
        shapes = weight_shapes(self.config)
        generator = torch.Generator().manual_seed(list(shapes).index(name))
        if "norm" in name:
            return torch.ones(shapes[name])
        return torch.randn(shapes[name], generator=generator) * 0.3

    def tokenizer(self) -> Tokenizer:
        raise ModelError("a random model has no tokenizer")


class SpokenCheckpoint(RandomCheckpoint):
    """One that reads text: its forms can be measured."""

    def tokenizer(self) -> Tokenizer:
        return ByteTokenizer()


def load(
    dtype: str = "float32",
    *,
    kv_cache_bytes: int = 200_000,
    max_model_len: int | None = None,
    available_bytes: int | None = None,
) -> TorchRunner:
    return TorchRunner.load(
        RandomCheckpoint(),
        dtype=dtype,
        kv_cache_bytes=kv_cache_bytes,
        block_size=4,
        max_model_len=max_model_len,
        available_bytes=available_bytes,
    )


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors: on shared cores, more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def runner() -> TorchRunner:
    return load()


class Answers:
    """Runs requests to a given length by hand-made plans, ``chunk_tokens`` of each per step."""

    def __init__(self, runner: Runner, chunk_tokens: int = 1000, epoch: int = 1) -> None:
        self.runner = runner
        self.chunk_tokens = chunk_tokens
        self.epoch = epoch
        self.sampled: dict[int, list[Sampled]] = {}

    def run(
        self,
        requests: dict[int, Sampling],
        length: int,
        resumed: dict[int, tuple[int, ...]] | None = None,
    ) -> dict[int, tuple[int, ...]]:
        said = {i: list((resumed or {}).get(i, ())) for i in requests}
        computed = dict.fromkeys(requests, 0)
        self.sampled = {i: [] for i in requests}
        admitted = tuple(
            Admitted(self._key(i), PROMPTS[i], tuple(said[i]), sampling) for i, sampling in requests.items()
        )
        while any(len(answer) < length for answer in said.values()):
            chunks: list[Chunk] = []
            for i in requests:
                known = PROMPTS[i] + tuple(said[i])
                fresh = known[computed[i] : computed[i] + self.chunk_tokens]
                if len(said[i]) < length:
                    end = computed[i] + len(fresh)
                    table = tuple(range(20 * i, 20 * i + 20))
                    chunks.append(Chunk(self._key(i), computed[i], fresh, table, end == len(known)))
                    computed[i] = end
            result = self.runner.execute(StepPlan(1, tuple(chunks), admitted))
            admitted = ()
            sampling_keys = [chunk.key for chunk in chunks if chunk.samples]
            assert [sampled.key for sampled in result.sampled] == sampling_keys
            for sampled in result.sampled:
                index = int(sampled.key.request_id)
                said[index].append(sampled.token_id)
                self.sampled[index].append(sampled)
        released = tuple(self._key(i) for i in requests)
        self.runner.execute(StepPlan(1, (), released=released))
        return {i: tuple(answer) for i, answer in said.items()}

    def _key(self, index: int) -> RequestKey:
        return RequestKey(str(index), self.epoch)


MIX: dict[int, Sampling] = {
    0: GREEDY,
    1: Sampling(temperature=1.0, seed=11),
    2: Sampling(temperature=0.7, top_p=0.9, seed=12, logprobs=3),
    3: Sampling(temperature=1.3, top_k=20, min_p=0.01, repetition_penalty=1.3, seed=-13),
    4: Sampling(temperature=0.0, presence_penalty=0.7, frequency_penalty=0.4, logprobs=0),
    5: Sampling(temperature=0.9, seed=2**63 + 5, logit_bias=((17, 3.5), (18, -100.0)), min_tokens=6),
}


# -- Batches, chunks, resumption ----------------------------------------


def test_answers_do_not_depend_on_who_else_is_in_the_batch(runner: TorchRunner) -> None:
    together = Answers(runner).run(MIX, 12)
    for index, sampling in MIX.items():
        assert Answers(runner).run({index: sampling}, 12)[index] == together[index]
    backwards = Answers(runner).run(dict(reversed(MIX.items())), 12)
    assert backwards == together


@pytest.mark.parametrize("chunk_tokens", [1, 3, 8])
def test_answers_do_not_depend_on_the_chunk_size(runner: TorchRunner, chunk_tokens: int) -> None:
    assert Answers(runner, chunk_tokens).run(MIX, 10) == Answers(runner).run(MIX, 10)


@pytest.mark.parametrize("kept", [1, 5, 9])
def test_another_runner_continues_the_same_answers(runner: TorchRunner, kept: int) -> None:
    whole = Answers(runner).run(MIX, 12)
    head = {index: answer[:kept] for index, answer in whole.items()}
    assert Answers(load(), chunk_tokens=7, epoch=2).run(MIX, 12, resumed=head) == whole


def test_a_repeated_step_gives_the_same_tokens(runner: TorchRunner) -> None:
    # After a failed step the engine runs its chunks again; penalties must not count a token twice.
    key, table, sampling = RequestKey("again", 1), tuple(range(8)), MIX[4]
    start = StepPlan(
        1, (Chunk(key, 0, PROMPTS[2], table, samples=True),), (Admitted(key, PROMPTS[2], (), sampling),)
    )
    token = runner.execute(start).sampled[0].token_id
    decode = StepPlan(2, (Chunk(key, len(PROMPTS[2]), (token,), table, samples=True),))
    assert runner.execute(decode).sampled == runner.execute(decode).sampled


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_any_chunking_gives_the_same_logits(runner: TorchRunner, cuts: list[int], prompt: int) -> None:
    tokens = PROMPTS[prompt] + PROMPTS[5]
    key, table = RequestKey("cut", 1), tuple(reversed(range(20)))
    admitted = (Admitted(key, tokens, (), GREEDY),)
    whole = runner.logits(StepPlan(1, (Chunk(key, 0, tokens, table, samples=True),), admitted))
    parts: list[Tensor] = []
    start = 0
    for cut in [*cuts, *([9] * len(tokens))]:
        fresh = tokens[start : start + cut]
        if fresh:
            chunk = Chunk(key, start, fresh, table, samples=start + len(fresh) == len(tokens))
            parts.append(runner.logits(StepPlan(1, (chunk,))))
            start += len(fresh)
    torch.testing.assert_close(torch.cat(parts), whole, atol=2e-5, rtol=1e-4)


# -- Sampling parameters ----------------------------------------


def test_bias_and_minimum_length_rule_what_may_be_said(runner: TorchRunner) -> None:
    forced = Sampling(temperature=0.0, logit_bias=((42, 1000.0), (10_000, 5.0)))
    assert Answers(runner).run({1: forced}, 5)[1] == (42,) * 5
    ends = replace(forced, logit_bias=((2, 1000.0), (9, 900.0), (8, 800.0)), min_tokens=3)
    assert Answers(runner).run({1: ends}, 5)[1] == (9, 9, 9, 2, 2), "the end of text waits for min_tokens"
    stop = replace(ends, stop_token_ids=frozenset({9, 400}))
    assert Answers(runner).run({1: stop}, 5)[1] == (8, 8, 8, 2, 2), "and so do the caller's stop tokens"
    assert Answers(runner).run({1: replace(stop, ignore_eos=True)}, 4)[1] == (2, 2, 2, 2)


def test_penalties_keep_an_answer_from_repeating(runner: TorchRunner) -> None:
    pull = tuple((token, 500.0 - 10 * token) for token in range(20, 30))
    plain = Sampling(temperature=0.0, logit_bias=pull)
    assert Answers(runner).run({0: plain}, 6)[0] == (20,) * 6
    once = replace(plain, presence_penalty=400.0)
    assert len(set(Answers(runner).run({0: once}, 6)[0])) == 6


def test_every_token_brings_the_logprobs_it_was_asked_for(runner: TorchRunner) -> None:
    answers = Answers(runner)
    said = answers.run({1: Sampling(temperature=0.8, seed=5, logprobs=4), 2: GREEDY, 4: MIX[4]}, 6)
    assert all(sampled.logprobs is None for sampled in answers.sampled[2])
    assert all(s.logprobs is not None and s.logprobs.top == () for s in answers.sampled[4])
    key, tokens = RequestKey("check", 1), PROMPTS[1] + said[1]
    plan = StepPlan(
        1,
        (Chunk(key, 0, tokens, tuple(range(20)), samples=True),),
        (Admitted(key, tokens, (), GREEDY),),
    )
    exact = torch.log_softmax(runner.logits(plan).double(), dim=-1)[len(PROMPTS[1]) - 1 :]
    for sampled, row in zip(answers.sampled[1], exact, strict=False):
        logprobs = sampled.logprobs
        assert logprobs is not None
        assert logprobs.chosen == pytest.approx(float(row[sampled.token_id]), abs=1e-4)
        assert [token for token, _ in logprobs.top] == row.topk(4).indices.tolist()
        assert [value for _, value in logprobs.top] == pytest.approx(row.topk(4).values.tolist(), abs=1e-4)


# -- What it remembers, and what it refuses ----------------------------------------


def test_a_newer_epoch_replaces_and_a_released_one_is_forgotten(runner: TorchRunner) -> None:
    table = tuple(range(8))

    def chunk(epoch: int) -> Chunk:
        return Chunk(RequestKey("owner", epoch), 0, PROMPTS[1], table, samples=True)

    def admit(epoch: int) -> tuple[Admitted, ...]:
        return (Admitted(RequestKey("owner", epoch), PROMPTS[1], (), GREEDY),)

    runner.execute(StepPlan(1, (chunk(1),), admit(1)))
    runner.execute(StepPlan(2, (chunk(2),), admit(2)))
    with pytest.raises(InvariantError, match="never admitted"):
        runner.execute(StepPlan(3, (chunk(1),)))
    # A late release of the old epoch leaves the new one alone.
    runner.execute(StepPlan(4, (chunk(2),), released=(RequestKey("owner", 1),)))
    with pytest.raises(InvariantError, match="is released"):
        runner.execute(StepPlan(5, (chunk(2),), released=(RequestKey("owner", 2),)))


def test_a_chunk_beyond_its_bounds_is_refused_before_anything_runs(runner: TorchRunner) -> None:
    key = RequestKey("bounds", 1)
    admitted = (Admitted(key, PROMPTS[1], (), GREEDY),)
    for start, tokens, blocks in ((94, (1, 2, 3), 30), (0, (1, 2, 3, 4, 5), 1), (0, (), 1)):
        chunk = Chunk(key, start, tokens, tuple(range(blocks)), samples=True)
        with pytest.raises(InvariantError, match="ends at"):
            runner.execute(StepPlan(1, (chunk,), admitted))


def test_a_step_without_samples_returns_none(runner: TorchRunner) -> None:
    key = RequestKey("part", 1)
    chunk = Chunk(key, 0, PROMPTS[3][:4], (0, 1), samples=False)
    result = runner.execute(StepPlan(9, (chunk,), (Admitted(key, PROMPTS[3], (), GREEDY),)))
    assert (result.step, result.sampled) == (9, ())
    assert result.elapsed_seconds > 0


def test_limits_come_from_model_caller_and_pool() -> None:
    per_block = 2 * 2 * 2 * 8 * 4 * 4  # layers, keys and values, heads, width, float32, tokens
    assert load().max_model_len == 96
    assert load(max_model_len=50).max_model_len == 50
    small = load(kv_cache_bytes=5 * per_block)
    assert (small.block_count, small.block_size, small.max_model_len) == (5, 4, 20)
    assert (small.vocab_size, small.eos_token_ids) == (300, frozenset({2}))


def test_what_cannot_fit_is_refused_with_numbers_and_advice() -> None:
    with pytest.raises(ModelError, match=r"holds 1 blocks of 4 tokens .* give it at least 2,048 bytes"):
        load(kv_cache_bytes=1500)
    with pytest.raises(
        ModelError, match=r"not enough memory: weights take .* use a smaller model or choose bf"
    ):
        load(available_bytes=10_000)
    with pytest.raises(ModelError, match=r"not enough memory: .* lower the KV cache to"):
        load(available_bytes=250_000)
    assert load(available_bytes=1 << 30).block_count > 0
    with pytest.raises(ModelError, match="dtype 'int3' is not known; use auto, float32 or bfloat16"):
        load(dtype="int3")
    unknown = RandomCheckpoint(replace(CONFIG, activation="relu"))
    with pytest.raises(ModelError, match="activation 'relu' is not supported"):
        TorchRunner.load(unknown, dtype="float32", kv_cache_bytes=200_000)


def test_auto_is_bfloat16_only_where_the_hardware_multiplies_it() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert compute_dtype("auto", cpu, {"avx2": True, "avx512_bf16": False}) == torch.float32
    assert compute_dtype("auto", cpu, {"avx512_bf16": True}) == torch.bfloat16
    assert compute_dtype("auto", cpu, {"neon": True, "bf16": True}) == torch.bfloat16
    assert compute_dtype("auto", gpu, {}) == torch.bfloat16
    assert compute_dtype("float32", gpu, {"avx512_bf16": True}) == torch.float32


def test_bfloat16_stays_near_float32(runner: TorchRunner) -> None:
    key, tokens = RequestKey("near", 1), PROMPTS[5]
    plan = StepPlan(
        1,
        (Chunk(key, 0, tokens, tuple(range(8)), samples=True),),
        (Admitted(key, tokens, (), GREEDY),),
    )
    exact, low = runner.logits(plan), load("bfloat16").logits(plan)
    assert low.dtype == torch.float32
    # Eight bits of mantissa through two layers.
    assert float((low - exact).abs().max()) < 0.05 * float(exact.abs().max())
