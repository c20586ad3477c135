"""The demo model on native kernels: perplexity near float32's, greedy answers Hugging Face's up to ties."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.hugging_face import same_weights_model
from tests.engine.test_hf_equality import QUESTIONS
from tests.native_kernels import CACHE_DIR, native_library

from headway.engine.checkpoint import Checkpoint, open_checkpoint
from headway.engine.content import StoredCheckpoint, content_digest
from headway.engine.cpu_kernels import CpuSettings, KvCacheDType, Quantization
from headway.engine.interfaces import Tokenizer
from headway.engine.model_source import resolve_model
from headway.engine.native_model import NativeModel
from headway.engine.quantization_check import WINDOW, cost_of, log_likelihoods, text_tokens
from headway.engine.quantization_choice import (
    BFLOAT16,
    BOUND,
    CONFIDENCE_ERRORS,
    FOUR_BIT_FORMS,
    KV_FORMS,
    RECORDED,
    Form,
)
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import Admitted, Chunk, RequestKey, Sampling, StepPlan
from headway.kernels.cpu_step import MANY_TOKENS

pytestmark = pytest.mark.timeout(400)

RECORD: dict[str, Any] = json.loads((Path(__file__).parent / "opticks_float32.json").read_text())
"""float32's log-likelihood of each window: ``ops/bench/perplexity.py --record``."""
WINDOWS = 16
"""Of those, 8,192 tokens."""
ANSWER_TOKENS = 40
GREEDY = Sampling(temperature=0.0, ignore_eos=True)
TIE = 0.25
"""Logits of about 20 are 0.125 apart in bfloat16: two that are nearer than twice that are a tie."""


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
def tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    return text_tokens(tokenizer)


def native(
    checkpoint: Checkpoint, quantization: Quantization, kv: KvCacheDType = "auto", max_model_len: int = 1024
) -> TorchRunner:
    native_library()
    return TorchRunner.load(
        checkpoint,
        dtype="bfloat16",
        kv_cache_bytes=128 << 20,
        max_model_len=max_model_len,
        cpu=CpuSettings("native", quantization, CACHE_DIR, kv_cache_dtype=kv),
    )


def test_the_record_is_float32s(checkpoint: Checkpoint, tokens: tuple[int, ...]) -> None:
    assert RECORD["window"] == WINDOW
    assert len(RECORD["log_likelihoods"]) == math.ceil(len(tokens) / WINDOW)
    runner = TorchRunner.load(checkpoint, dtype="float32", kv_cache_bytes=64 << 20, max_model_len=WINDOW)
    for index in (0, len(tokens) // WINDOW):
        window = tokens[index * WINDOW : (index + 1) * WINDOW]
        assert float(log_likelihoods(runner, window).sum()) == pytest.approx(
            RECORD["log_likelihoods"][index], abs=0.01
        )


DEFAULT = Form("q4-int8", "int8")
MEASURED = (*RECORDED["2a6fce1a843366a9547f530a"], BFLOAT16)


@pytest.mark.parametrize(
    "form",
    # Any but the default costs less, or is not what most run.
    [
        pytest.param(form, id=str(form), marks=() if form == DEFAULT else pytest.mark.soak)
        for form in MEASURED
    ],
)
def test_perplexity_is_within_a_hundredth_of_float32(
    form: Form, checkpoint: Checkpoint, tokens: tuple[int, ...]
) -> None:
    text = tokens[: WINDOWS * WINDOW]
    assert len(text) >= 8000
    scores = log_likelihoods(native(checkpoint, form.quantization, form.kv_cache_dtype), text)
    losses = sum(RECORD["log_likelihoods"][:WINDOWS]) - float(scores.sum())
    assert losses / len(scores) <= math.log1p(BOUND)


def test_auto_takes_what_the_test_above_measures(checkpoint: Checkpoint, tmp_path: Path) -> None:
    assert isinstance(checkpoint, StoredCheckpoint)
    recorded = RECORDED[content_digest(checkpoint.files(), tmp_path)[:24]]
    assert {*recorded, BFLOAT16} == set(MEASURED)
    assert recorded.keys() >= {Form(weights, kv) for weights in FOUR_BIT_FORMS[:2] for kv in KV_FORMS}
    runner = native(checkpoint, "auto")
    assert runner.kernels == f"native (Q4_1, INT8 for {MANY_TOKENS} tokens or more, head Q8_0, KV int8)"
    assert runner.weights.startswith(f"{DEFAULT}: ")
    assert "on record" in runner.weights


@pytest.mark.parametrize(("quantization", "kv"), [("q4", "int8"), ("none", "int8"), ("int8", "bf16")])
def test_a_form_by_name_has_its_keys_from_the_record_too(
    quantization: Quantization, kv: KvCacheDType, checkpoint: Checkpoint
) -> None:
    runner = native(checkpoint, quantization)
    assert runner.kernels.endswith(", KV int8)") == (kv == "int8")
    assert runner.weights.startswith(f"{Form(quantization, kv)}: ")
    assert "on record" in runner.weights


def test_a_long_context_in_8_bits_costs_hardly_more_than_in_bfloat16(
    checkpoint: Checkpoint, tokens: tuple[int, ...]
) -> None:
    """1,536 tokens read together, of which the last find theirs in 96 blocks."""
    scores = [
        log_likelihoods(native(checkpoint, "q4-int8", kv, 1536), tokens[:1536], 1536) for kv in KV_FORMS
    ]
    cost = cost_of(*scores)
    assert cost.tokens == 1535
    assert cost.change - CONFIDENCE_ERRORS * cost.error <= BOUND / 4
    assert not torch.equal(*scores)


def test_few_tokens_are_computed_with_the_files_own_blocks(
    checkpoint: Checkpoint, tokens: tuple[int, ...]
) -> None:
    both, blocks = native(checkpoint, "q4-int8"), native(checkpoint, "q4")
    few, many = tokens[: MANY_TOKENS - 1], tokens[:MANY_TOKENS]
    assert torch.equal(log_likelihoods(both, few), log_likelihoods(blocks, few))
    assert not torch.equal(log_likelihoods(both, many), log_likelihoods(blocks, many))
    read = [weight_bytes(both, 1), weight_bytes(both, MANY_TOKENS - 1), weight_bytes(blocks, MANY_TOKENS)]
    assert read == [weight_bytes(blocks, 1)] * 3
    assert weight_bytes(both, MANY_TOKENS) > 1.3 * read[0]


def weight_bytes(runner: TorchRunner, tokens: int) -> int:
    """That a step of so many tokens reads."""
    assert isinstance(runner._model, NativeModel)
    return runner._model.weight_bytes(tokens)


def test_greedy_answers_in_bfloat16_are_hugging_faces_up_to_ties(
    path: Path, checkpoint: Checkpoint, tokenizer: Tokenizer
) -> None:
    theirs = same_weights_model(path, checkpoint, torch.bfloat16)
    prompts = [tokenizer.render_chat([{"role": "user", "content": question}]) for question in QUESTIONS]
    assert len(prompts) == 20
    ties: list[float] = []
    for prompt, answer in zip(prompts, greedy(native(checkpoint, "none", "bf16"), prompts), strict=True):
        # At each of its tokens, what they say after the same beginning.
        with torch.inference_mode():
            logits = theirs(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].float()
        chosen = logits.gather(1, torch.tensor(answer).unsqueeze(1)).squeeze(1)
        behind = logits.amax(dim=-1) - chosen
        assert float(behind.max()) <= TIE
        ties += behind[behind > 0].tolist()
    # Of 800 tokens two were ties when this was written, 0.25 and 0.0625 behind theirs; the others equal.
    assert len(ties) <= 10


def greedy(runner: TorchRunner, prompts: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """All answers in one batch."""
    keys = [RequestKey(str(index), 1) for index in range(len(prompts))]
    admitted = tuple(Admitted(key, prompt, (), GREEDY) for key, prompt in zip(keys, prompts, strict=True))
    answers: list[tuple[int, ...]] = [() for _ in prompts]
    for step in range(ANSWER_TOKENS):
        chunks = [
            Chunk(
                key,
                start=0 if step == 0 else len(prompt) + step - 1,
                token_ids=prompt if step == 0 else answer[-1:],
                block_table=tuple(range(12 * index, 12 * index + 12)),
                samples=True,
            )
            for index, (key, prompt, answer) in enumerate(zip(keys, prompts, answers, strict=True))
        ]
        result = runner.execute(StepPlan(step, tuple(chunks), admitted if step == 0 else ()))
        answers = [(*a, entry.token_id) for a, entry in zip(answers, result.sampled, strict=True)]
    return answers
