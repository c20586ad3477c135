"""The engine on SmolLM2 says, token for token, what Hugging Face transformers says with the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from tests.computed_once import computed_once
from tests.engine.hugging_face import reference_model, same_weights_model

from headway.engine.checkpoint import Checkpoint, open_checkpoint
from headway.engine.engine import Engine
from headway.engine.interfaces import Tokenizer
from headway.engine.limits import StepLimits
from headway.engine.model_source import resolve_model
from headway.engine.policy import Fcfs
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import Admitted, Chunk, RequestKey, RequestSpec, Sampling, StepPlan

# Seconds when the cores are free, minutes when they are shared.
pytestmark = pytest.mark.timeout(400)

ANSWER_TOKENS = 64
MAX_LOGIT_DIFFERENCE = 1e-3
GREEDY = Sampling(temperature=0.0, ignore_eos=True)

QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about trains.",
    "Explain why the sky is blue to a child.",
    "List three prime numbers.",
    "def fibonacci(n):",
    "Translate 'good morning' to Spanish.",
    "What is 17 + 25?",
    "Name a river in Africa, and say where it ends.",
    "Give me a recipe for pancakes with only four ingredients, step by step, and say how long each takes.",
    "Who wrote Hamlet?",
    "Summarise: The cat sat on the mat. The dog came in. The cat left.",
    "What does HTTP stand for?",
    "Write one sentence with the words moon, ladder and soup.",
    "Is a tomato a fruit?",
    "1, 1, 2, 3, 5, 8,",
    "How do magnets work?",
    "Zähle auf Deutsch von eins bis fünf.",
    "Complete: To be, or not to be,",
    "What should I pack for a week in the mountains in early spring, when it may still snow at night?",
    "Say nothing.",
)


@pytest.fixture(scope="module")
def path() -> Path:
    return resolve_model("smollm2-135m").path


@pytest.fixture(scope="module")
def checkpoint(path: Path) -> Checkpoint:
    return open_checkpoint(path)


@pytest.fixture(scope="module")
def tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    return checkpoint.tokenizer()


@pytest.fixture(scope="module")
def runner(checkpoint: Checkpoint) -> TorchRunner:
    return TorchRunner.load(checkpoint, dtype="float32", kv_cache_bytes=256 << 20, max_model_len=1024)


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    return tuple(tokenizer.render_chat([{"role": "user", "content": question}]) for question in QUESTIONS)


@pytest.fixture(scope="module")
def together(
    runner: TorchRunner,
    tokenizer: Tokenizer,
    prompts: tuple[tuple[int, ...], ...],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[tuple[int, ...], ...]:
    """Greedy answers of one staggered batch, computed by one process for all."""

    def compute() -> list[tuple[int, ...]]:
        return answers(runner, tokenizer, prompts, steps_between=2)

    return tuple(map(tuple, computed_once(tmp_path_factory, "smollm2-together", compute)))


def answers(
    runner: TorchRunner,
    tokenizer: Tokenizer,
    prompts: tuple[tuple[int, ...], ...],
    *,
    step_tokens: int = 4096,
    steps_between: int = 0,
) -> list[tuple[int, ...]]:
    """Answers of prompts that arrive ``steps_between`` steps apart."""
    limits = StepLimits(max_step_tokens=step_tokens, max_sequences=min(64, step_tokens), min_chunk_tokens=1)
    engine = Engine(runner, tokenizer, limits=limits, policy=Fcfs())
    said: dict[str, list[int]] = {str(index): [] for index in range(len(prompts))}
    waiting = list(enumerate(prompts))
    step = 0
    while waiting or engine.has_work:
        while waiting and step >= waiting[0][0] * steps_between:
            index, prompt = waiting.pop(0)
            engine.add(RequestSpec(str(index), 1, prompt, GREEDY, ANSWER_TOKENS, arrival_seconds=float(step)))
        for output in engine.step(float(step)):
            said[output.key.request_id] += output.token_ids
        step += 1
    engine.check_books()
    return [tuple(tokens) for tokens in said.values()]


def hugging_face_logits(reference: Any, tokens: tuple[int, ...]) -> torch.Tensor:
    with torch.inference_mode():
        return cast(torch.Tensor, reference(torch.tensor([tokens])).logits[0])


def our_logits(runner: TorchRunner, tokens: tuple[int, ...]) -> torch.Tensor:
    """Logits at every position, in one prefill."""
    key = RequestKey("logits", 1)
    table = tuple(range(100, 100 + -(-len(tokens) // runner.block_size)))
    return runner.logits(
        StepPlan(
            step=0,
            chunks=(Chunk(key, start=0, token_ids=tokens, block_table=table, samples=True),),
            admitted=(Admitted(key, tokens, (), GREEDY),),
        )
    )


def test_greedy_answers_and_logits_at_every_position_are_those_of_hugging_face(
    path: Path,
    runner: TorchRunner,
    prompts: tuple[tuple[int, ...], ...],
    together: tuple[tuple[int, ...], ...],
) -> None:
    reference = reference_model(path)
    for prompt, answer in zip(prompts, together, strict=True):
        assert len(answer) == ANSWER_TOKENS
        theirs = hugging_face_logits(reference, prompt + answer)
        # Greedy decoding by induction: after the same tokens, transformers' most likely next one is ours.
        assert tuple(theirs[len(prompt) - 1 : -1].argmax(dim=-1).tolist()) == answer
        ours = our_logits(runner, prompt + answer)
        assert float((ours - theirs).abs().max()) <= MAX_LOGIT_DIFFERENCE


def test_generate_of_hugging_face_says_the_same(
    path: Path,
    checkpoint: Checkpoint,
    prompts: tuple[tuple[int, ...], ...],
    together: tuple[tuple[int, ...], ...],
) -> None:
    prompt = prompts[8]
    generated = same_weights_model(path, checkpoint, torch.float32).generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=ANSWER_TOKENS,
        min_new_tokens=ANSWER_TOKENS,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    assert tuple(generated[0, len(prompt) :].tolist()) == together[8]


@pytest.mark.parametrize(
    "count",
    [
        5,
        # 1,280 decode steps one by one.
        pytest.param(20, marks=pytest.mark.soak),
    ],
)
def test_answers_one_by_one_say_the_same(
    runner: TorchRunner,
    tokenizer: Tokenizer,
    prompts: tuple[tuple[int, ...], ...],
    together: tuple[tuple[int, ...], ...],
    count: int,
) -> None:
    assert len(prompts) == len(QUESTIONS) == 20
    for prompt, answer in zip(prompts[-count:], together[-count:], strict=True):
        assert answers(runner, tokenizer, (prompt,)) == [answer]


@pytest.mark.parametrize(("step_tokens", "count"), [(7, 9), (32, 20)])
def test_staggered_batches_in_any_chunk_size_say_the_same(
    runner: TorchRunner,
    tokenizer: Tokenizer,
    prompts: tuple[tuple[int, ...], ...],
    together: tuple[tuple[int, ...], ...],
    step_tokens: int,
    count: int,
) -> None:
    # With seven tokens a step a prompt takes several steps, and at most seven answers run at once.
    chunked = answers(runner, tokenizer, prompts[:count], step_tokens=step_tokens, steps_between=2)
    assert chunked == list(together[:count])
