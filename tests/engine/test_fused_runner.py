"""What the GPU's runner promises, on CPU tensors: the answers of torch's runner, however steps are run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from tests.engine.fused_rig import SMALL, RerunGraphs, fused_runner, torch_runner
from tests.engine.reference_launches import reference_launches
from tests.engine.test_torch_runner import GREEDY, PROMPTS, Answers

from headway.engine import fused_places, fused_sampler
from headway.engine.engine import Engine
from headway.engine.errors import InvariantError
from headway.engine.fused_runner import FusedRunner
from headway.engine.interfaces import LaunchingRunner
from headway.engine.limits import StepLimits
from headway.engine.policy import Fcfs
from headway.engine.scripted import ByteTokenizer
from headway.engine.values import (
    PLACEHOLDER,
    Admitted,
    Chunk,
    RequestKey,
    RequestSpec,
    Sampled,
    Sampling,
    StepPlan,
    StepResult,
)

pytest.importorskip("triton")

SAMPLINGS = {
    0: GREEDY,
    1: Sampling(temperature=0.8, seed=3, min_p=0.02),
    2: Sampling(temperature=1.0, top_p=0.9, seed=-4, repetition_penalty=1.3, logprobs=3),
    3: Sampling(
        temperature=0.0, frequency_penalty=0.5, presence_penalty=0.2, logit_bias=((7, 4.0),), min_tokens=3
    ),
    4: Sampling(temperature=0.9, top_k=20, seed=5, min_tokens=5, logprobs=0),
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors: on shared cores, more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def launches() -> Iterator[list[str]]:
    """References in place of interpreted kernels."""
    with reference_launches() as launched:
        yield launched


def plain_answers(samplings: dict[int, Sampling], length: int) -> Answers:
    answers = Answers(torch_runner())
    answers.run(samplings, length)
    return answers


def assert_same(ours: dict[int, list[Sampled]], theirs: dict[int, list[Sampled]]) -> None:
    """Tokens are equal, and log-probabilities up to float32's rounding."""
    for i, expected in theirs.items():
        assert [entry.token_id for entry in ours[i]] == [entry.token_id for entry in expected]
        for mine, other in zip(ours[i], expected, strict=True):
            assert (mine.logprobs is None) == (other.logprobs is None)
            if mine.logprobs is not None and other.logprobs is not None:
                assert mine.logprobs.chosen == pytest.approx(other.logprobs.chosen, abs=1e-4)
                assert [token for token, _ in mine.logprobs.top] == [t for t, _ in other.logprobs.top]


@pytest.mark.parametrize("chunk_tokens", [1000, 5])
def test_answers_are_those_of_torchs_runner(chunk_tokens: int, launches: list[str]) -> None:
    expected = plain_answers(SAMPLINGS, 12)
    graphs = RerunGraphs()
    ours = Answers(fused_runner(graphs=graphs), chunk_tokens)
    ours.run(SAMPLINGS, 12)
    assert_same(ours.sampled, expected.sampled)
    assert graphs.replays > 0
    assert "pick_kernel" in launches


def test_interpreted_kernels_give_the_same_answers() -> None:
    some = {i: SAMPLINGS[i] for i in (0, 2, 3)}
    expected = plain_answers(some, 4)
    graphs = RerunGraphs()
    ours = Answers(fused_runner(graphs=graphs))
    ours.run(some, 4)
    assert_same(ours.sampled, expected.sampled)
    assert graphs.replays > 0


SPECS = [
    RequestSpec(
        f"r{i}",
        0,
        PROMPTS[i % 6],
        replace(SAMPLINGS[i % 5], ignore_eos=True),
        5 + 3 * (i % 4),
        arrival_seconds=i,
    )
    for i in range(9)
]


def engine_answers(
    runner: LaunchingRunner | object, *, looks_ahead: bool, late: int = 0
) -> dict[str, list[int]]:
    """Requests that come a few at a time, in chunks of at most 16 tokens."""
    engine = Engine(
        runner,  # type: ignore[arg-type]  # torch's runner or the GPU's
        AnyBytes(),
        limits=StepLimits(max_step_tokens=16, max_sequences=4, min_chunk_tokens=4),
        policy=Fcfs(),
        looks_ahead=looks_ahead,
    )
    answers: dict[str, list[int]] = {spec.request_id: [] for spec in SPECS}
    waiting, now = list(SPECS), 0.0
    while waiting or engine.has_work:
        for spec in waiting[: 1 + late]:
            engine.add(spec)
        del waiting[: 1 + late]
        for output in engine.step(now):
            answers[output.key.request_id] += output.token_ids
        now += 1.0
    engine.check_books()
    engine.close()
    return answers


class AnyBytes(ByteTokenizer):
    """Bytes, and a question mark for every token beyond."""

    def token_bytes(self, token_id: int) -> bytes:
        return super().token_bytes(token_id) if token_id < self.vocab_size else b"?"


@pytest.mark.parametrize("late", [0, 2])
def test_steps_launched_before_the_last_is_read_give_the_same_answers(late: int, launches: list[str]) -> None:
    expected = engine_answers(torch_runner(), looks_ahead=False)
    graphs = RerunGraphs()
    ours = fused_runner(graphs=graphs)
    assert isinstance(ours, LaunchingRunner)
    assert engine_answers(ours, looks_ahead=True, late=late) == expected
    assert graphs.replays > 0


def chunk(i: int, start: int, tokens: tuple[int, ...], drafts: int = 0) -> Chunk:
    table = tuple(range(20 * i, 20 * i + 20))
    return Chunk(RequestKey(str(i), 0), start, tokens, table, samples=True, draft_tokens=drafts)


def prefill(i: int, sampling: Sampling = GREEDY) -> StepPlan:
    key = RequestKey(str(i), 0)
    return StepPlan(1, (chunk(i, 0, PROMPTS[i]),), (Admitted(key, PROMPTS[i], (), sampling),))


def tokens_of(result: StepResult) -> list[int]:
    return [entry.token_id for entry in result.sampled]


@pytest.mark.parametrize("which", SAMPLINGS)
def test_a_repeated_step_gives_the_same_tokens(which: int, launches: list[str]) -> None:
    runner, length = fused_runner(), len(PROMPTS[which])
    first = runner.execute(prefill(which, SAMPLINGS[which]))
    again = runner.execute(replace(prefill(which), admitted=()))
    assert again.sampled == first.sampled
    second = StepPlan(2, (chunk(which, length, (first.sampled[0].token_id,)),))
    assert runner.execute(second).sampled == runner.execute(second).sampled


def test_a_placeholder_is_the_token_that_the_step_before_chose(launches: list[str]) -> None:
    runner, length = fused_runner(), len(PROMPTS[2])
    runner.launch(prefill(2, SAMPLINGS[2]))
    runner.launch(StepPlan(2, (chunk(2, length, (PLACEHOLDER,)),)))
    with pytest.raises(InvariantError, match="2 steps are under way"):
        runner.launch(StepPlan(3, (chunk(2, length + 1, (PLACEHOLDER,)),)))
    first = tokens_of(runner.collect())
    runner.launch(StepPlan(3, (chunk(2, length + 1, (PLACEHOLDER,)),)))
    rest = tokens_of(runner.collect()) + tokens_of(runner.collect())
    expected = plain_answers({2: SAMPLINGS[2]}, 3)
    assert first + rest == [entry.token_id for entry in expected.sampled[2]]
    with pytest.raises(InvariantError, match="no step is under way"):
        runner.collect()


def test_a_placeholder_that_nobody_chose_is_refused_and_nothing_is_launched(launches: list[str]) -> None:
    runner = fused_runner()
    runner.execute(prefill(0))
    launches.clear()
    with pytest.raises(InvariantError, match="sampled no token for position"):
        runner.launch(StepPlan(2, (chunk(0, len(PROMPTS[0]) + 1, (PLACEHOLDER,)),)))
    assert launches == []


@pytest.mark.parametrize("which", SAMPLINGS)
@pytest.mark.parametrize("right", [0, 1, 3])
def test_right_guesses_give_the_tokens_of_plain_decoding(which: int, right: int, launches: list[str]) -> None:
    said = tuple(entry.token_id for entry in plain_answers({which: SAMPLINGS[which]}, 9).sampled[which])
    runner, length = fused_runner(graphs=RerunGraphs()), len(PROMPTS[which])
    heard = tokens_of(runner.execute(prefill(which, SAMPLINGS[which])))
    while len(heard) < 9:
        guesses = list(said[len(heard) : len(heard) + 3])
        if right < len(guesses):
            guesses[right] = (guesses[right] + 1) % 300
        fresh = (heard[-1], *guesses)
        plan = StepPlan(2, (chunk(which, length + len(heard) - 1, fresh, len(guesses)),))
        heard += tokens_of(runner.execute(plan))
    assert tuple(heard[:9]) == said


def test_padding_writes_no_key_of_anybody(launches: list[str]) -> None:
    runner = fused_runner(graphs=RerunGraphs())
    pools = runner._cache.pools
    with torch.inference_mode():
        pools.fill_(7.0)
    # Three rows are padded to four, in blocks 0, 20 and 40.
    answers = Answers(runner)
    answers.run({0: GREEDY, 1: GREEDY, 2: GREEDY}, 5)
    used = [block for i in range(3) for block in range(20 * i, 20 * i + 5)]
    others = [block for block in range(runner.block_count) if block not in used]
    assert bool((pools[:, :, others] == 7.0).all())


def test_more_rows_than_there_was_room_for_change_nothing(
    launches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_sampler, "FEWEST_ROWS", 1)
    monkeypatch.setattr(fused_sampler, "FEWEST_TOP", 1)
    monkeypatch.setattr(fused_sampler, "FIRST_TOP", 1)
    expected = engine_answers(torch_runner(), looks_ahead=False)
    assert engine_answers(fused_runner(graphs=RerunGraphs()), looks_ahead=True) == expected


def test_a_step_too_large_for_the_memory_that_is_kept_gets_its_own(
    launches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_places, "KEPT_BYTES", 2600)
    expected = engine_answers(torch_runner(), looks_ahead=False)
    graphs = RerunGraphs()
    assert engine_answers(fused_runner(graphs=graphs), looks_ahead=True) == expected
    assert graphs.replays > 0


def test_a_chunk_that_no_honest_plan_holds_is_refused(launches: list[str]) -> None:
    runner: FusedRunner = fused_runner(SMALL)
    runner.execute(prefill(0))
    for bad in (chunk(1, 0, (5,)), chunk(0, 79, (5, 6)), chunk(0, 5, ())):
        with pytest.raises(InvariantError):
            runner.launch(StepPlan(2, (bad,)))
    assert tokens_of(runner.execute(replace(prefill(0), admitted=())))
