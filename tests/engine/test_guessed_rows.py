"""Real runners check guesses: whatever of them is wrong, tokens and logprobs are those without guesses."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
import torch
from tests.engine.test_native_runner import NativeRunner
from tests.engine.test_torch_runner import MIX, PROMPTS, Answers, RandomCheckpoint

from headway.engine.torch_runner import TorchRunner
from headway.engine.values import Admitted, Chunk, RequestKey, Sampled, Sampling, StepPlan

LENGTH = 20
TABLE_BLOCKS = 20


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors: on shared cores, more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def load(kind: str) -> TorchRunner:
    loader = NativeRunner.load if kind == "native" else TorchRunner.load
    return loader(RandomCheckpoint(), dtype="float32", kv_cache_bytes=200_000, block_size=4)


class Guessing:
    """Runs requests together, each with guesses taken from what it is known to answer, some made wrong."""

    def __init__(self, runner: TorchRunner, answers: dict[int, tuple[int, ...]], rng: Random) -> None:
        self._runner = runner
        self._answers = answers
        self._rng = rng
        self.sampled: dict[int, list[Sampled]] = {index: [] for index in answers}
        self.right = self.wrong = 0

    def run(self, samplings: dict[int, Sampling]) -> None:
        admitted = tuple(
            Admitted(self._key(index), PROMPTS[index], (), sampling) for index, sampling in samplings.items()
        )
        chunks = tuple(
            Chunk(self._key(index), 0, PROMPTS[index], self._table(index), samples=True)
            for index in samplings
        )
        while chunks:
            result = self._runner.execute(StepPlan(1, chunks, admitted))
            admitted = ()
            self._take(chunks, result.sampled)
            chunks = tuple(
                self._decode(index) for index, entries in self.sampled.items() if len(entries) < LENGTH
            )
        released = tuple(self._key(index) for index in samplings)
        self._runner.execute(StepPlan(1, (), released=released))

    def _take(self, chunks: tuple[Chunk, ...], sampled: tuple[Sampled, ...]) -> None:
        for entry in sampled:
            self.sampled[int(entry.key.request_id)].append(entry)
        for chunk in chunks:
            right = sum(entry.key == chunk.key for entry in sampled) - 1
            self.right += right
            self.wrong += chunk.draft_tokens - right

    def _decode(self, index: int) -> Chunk:
        said = self.sampled[index]
        most = min(self._rng.randint(0, 5), LENGTH - len(said) - 1)
        drafts = [
            self._rng.randrange(300) if self._rng.random() < 0.3 else token
            for token in self._answers[index][len(said) : len(said) + most]
        ]
        start = len(PROMPTS[index]) + len(said) - 1
        tokens = (said[-1].token_id, *drafts)
        return Chunk(self._key(index), start, tokens, self._table(index), True, len(drafts))

    def _key(self, index: int) -> RequestKey:
        return RequestKey(str(index), 7)

    def _table(self, index: int) -> tuple[int, ...]:
        return tuple(range(TABLE_BLOCKS * index, TABLE_BLOCKS * (index + 1)))


@pytest.mark.parametrize("kind", ["torch", "native"])
def test_guesses_change_no_token_and_no_logprob(kind: str) -> None:
    runner = load(kind)
    plain = Answers(runner)
    answers = plain.run(MIX, LENGTH)
    right = wrong = 0
    for seed in range(8):
        guessing = Guessing(runner, answers, Random(seed))
        guessing.run(MIX)
        for index, entries in guessing.sampled.items():
            assert tuple(entry.token_id for entry in entries) == answers[index]
            for entry, other in zip(entries, plain.sampled[index], strict=True):
                assert_same_logprobs(entry, other, exactly=kind == "native")
        right, wrong = right + guessing.right, wrong + guessing.wrong
    # With penalties, logit bias, min_tokens, seeds and logprobs among them; nothing is right by accident.
    assert min(right, wrong) > 200


def assert_same_logprobs(entry: Sampled, other: Sampled, *, exactly: bool) -> None:
    if entry.logprobs is None or other.logprobs is None or exactly:
        assert entry.logprobs == other.logprobs
        return
    assert entry.logprobs.chosen == pytest.approx(other.logprobs.chosen, abs=1e-4)
    assert [token for token, _ in entry.logprobs.top] == [token for token, _ in other.logprobs.top]


@pytest.mark.parametrize("kind", ["torch", "native"])
def test_a_step_with_guesses_may_come_twice(kind: str) -> None:
    # Penalties count neither a wrong guess nor a right one twice.
    runner, sampling = load(kind), MIX[4]
    answer = Answers(runner).run({4: sampling}, 8)[4]
    key, table = RequestKey("again", 1), tuple(range(TABLE_BLOCKS))
    first = Chunk(key, 0, PROMPTS[4], table, samples=True)
    runner.execute(StepPlan(1, (first,), (Admitted(key, PROMPTS[4], (), sampling),)))
    start = len(PROMPTS[4])
    wrong = (answer[3] + 1) % 300
    guessed = StepPlan(2, (Chunk(key, start, (*answer[:3], wrong), table, True, 3),))
    for _ in range(3):
        assert [entry.token_id for entry in runner.execute(guessed).sampled] == list(answer[1:4])
    after = StepPlan(3, (Chunk(key, start + 3, (answer[3],), table, samples=True),))
    assert [entry.token_id for entry in runner.execute(after).sampled] == [answer[4]]
