"""The toy model notices what a real model would: wrong tables, missing chunks, blocks reused too early."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.engine.errors import InvalidTokenError, InvariantError
from headway.engine.interfaces import Runner, Tokenizer
from headway.engine.scripted import BOS, EOS, IM_END, IM_START, ByteTokenizer, ScriptedRunner, StepCost
from headway.engine.values import Admitted, Chunk, RequestKey, Sampling, StepPlan

KEY = RequestKey("a", 0)
PROMPT = (5, 6, 7, 8, 9, 10)
GREEDY = Sampling(temperature=0)
ADMITTED = Admitted(KEY, PROMPT, (), GREEDY)


def chunk(start: int, end: int, table: tuple[int, ...] = (3, 1), *, samples: bool = False) -> Chunk:
    return Chunk(KEY, start, PROMPT[start:end], table, samples)


def last_token(*chunks: Chunk, runner: ScriptedRunner | None = None) -> int:
    """The token that the last chunk samples, each chunk in a step of its own."""
    runner = runner or small_runner()
    runner.execute(StepPlan(1, (), (ADMITTED,)))
    results = [runner.execute(StepPlan(step, (each,))) for step, each in enumerate(chunks, start=2)]
    return results[-1].sampled[0].token_id


def small_runner() -> ScriptedRunner:
    return ScriptedRunner(block_count=4, block_size=4, alphabet=range(256))


def test_it_keeps_the_engines_protocols() -> None:
    runner: Runner = ScriptedRunner()
    tokenizer: Tokenizer = ByteTokenizer()
    assert runner.vocab_size == tokenizer.vocab_size
    assert runner.eos_token_ids == tokenizer.eos_token_ids


def test_any_chunks_give_the_reference_token() -> None:
    expected = small_runner().reference(PROMPT, GREEDY, 1)[0]
    assert last_token(chunk(0, 6, samples=True)) == expected
    assert last_token(chunk(0, 2, (3,)), chunk(2, 5), chunk(5, 6, samples=True)) == expected


@pytest.mark.parametrize(
    "chunks",
    [
        [chunk(0, 4), chunk(4, 6, (2, 1), samples=True)],
        [chunk(0, 4), chunk(4, 6, (1, 3), samples=True)],
        [chunk(0, 3), chunk(4, 6, samples=True)],
        [chunk(4, 6, samples=True)],
    ],
    ids=["wrong block", "swapped blocks", "missing token", "missing prefill"],
)
def test_a_history_with_a_fault_gives_another_token(chunks: list[Chunk]) -> None:
    assert last_token(*chunks) != small_runner().reference(PROMPT, GREEDY, 1)[0]


def test_a_block_given_away_too_early_gives_another_token() -> None:
    runner = small_runner()
    other = RequestKey("b", 0)
    runner.execute(StepPlan(1, (chunk(0, 5),), (ADMITTED, replace(ADMITTED, key=other))))
    runner.execute(StepPlan(2, (Chunk(other, 0, (1, 2), (3,), samples=False),)))
    (sampled,) = runner.execute(StepPlan(3, (chunk(5, 6, samples=True),))).sampled
    assert sampled.token_id != runner.reference(PROMPT, GREEDY, 1)[0]


def test_a_chunk_of_an_unknown_or_released_request_is_refused() -> None:
    runner = small_runner()
    with pytest.raises(InvariantError, match="never announced"):
        runner.execute(StepPlan(1, (chunk(0, 6),)))
    runner.execute(StepPlan(2, (chunk(0, 6),), (ADMITTED,)))
    with pytest.raises(InvariantError, match="released"):
        runner.execute(StepPlan(3, (chunk(0, 6),), released=(KEY,)))
    assert runner.known_requests == 0


def test_the_seed_changes_draws_but_not_greedy_answers() -> None:
    runner = ScriptedRunner()
    answers = {
        (temperature, seed): runner.reference(PROMPT, Sampling(temperature=temperature, seed=seed), 20)
        for temperature in (0.0, 1.0)
        for seed in (1, -2)
    }
    assert answers[0.0, 1] == answers[0.0, -2]
    assert answers[1.0, 1] != answers[1.0, -2]


def test_end_tokens_are_masked_before_min_tokens() -> None:
    runner = ScriptedRunner(alphabet=(EOS, *b"ab"))
    for seed in range(20):
        sampling = Sampling(seed=seed, min_tokens=6, stop_token_ids=frozenset(b"a"))
        answer = runner.reference(PROMPT, sampling, 12)
        assert answer[:6] == tuple(b"bbbbbb")


def test_a_script_is_the_answer_and_eos_its_end() -> None:
    def echo(prompt: tuple[int, ...]) -> tuple[int, ...]:
        return prompt[:2]

    assert ScriptedRunner(answer=echo).reference(PROMPT, GREEDY, 9) == (5, 6, EOS)


@pytest.mark.parametrize(
    ("cost", "seconds"),
    [
        (StepCost(), 0.0),
        (StepCost(per_step=2.0), 2.0),
        (StepCost(per_new_token=0.5), 2.5),
        (StepCost(per_context_token=1.0), 6.0),
    ],
)
def test_a_step_takes_what_its_cost_model_says(cost: Callable[[StepPlan], float], seconds: float) -> None:
    slept: list[float] = []
    runner = ScriptedRunner(cost=cost, sleep=slept.append)
    result = runner.execute(StepPlan(1, (chunk(1, 6),), (ADMITTED,)))
    assert (result.elapsed_seconds, slept) == (seconds, [seconds])


@given(st.text().filter(lambda text: "<|" not in text))
def test_bytes_of_tokens_join_to_the_text(text: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text, add_special_tokens=True)
    assert ids[0] == BOS
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text


def test_special_tokens_written_out_are_one_token_in_text_and_plain_in_chats() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("a<|im_end|>b", add_special_tokens=False) == (*b"a", IM_END, *b"b")
    chat = tokenizer.render_chat([{"role": "user", "content": "<|im_end|>"}])
    assert chat == (IM_START, *b"user\n<|im_end|>", IM_END, *b"\n", IM_START, *b"assistant\n")


def test_labels_print_and_unknown_ids_are_refused() -> None:
    tokenizer = ByteTokenizer()
    assert [tokenizer.token_label(token) for token in (97, 200, EOS)] == ["a", "<0xC8>", "<|eos|>"]
    with pytest.raises(InvalidTokenError, match="260"):
        tokenizer.token_bytes(260)
