"""``make deterministic``: 50 prompts × 100 tokens of the demo model, bit for bit, under all circumstances.

In bfloat16, in float32, and in the file's own 4-bit blocks with 8-bit keys and values, which are its default
form with the option: four or five minutes on two cores for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest
import torch
from tests.engine.circumstances import Circumstances, Entry, resumed, tell
from tests.engine.test_hf_equality import QUESTIONS
from tests.native_kernels import CACHE_DIR, native_library

from headway.engine.checkpoint import open_checkpoint
from headway.engine.cpu_kernels import CpuSettings, KvCacheDType, Quantization
from headway.engine.interfaces import Tokenizer
from headway.engine.kv_cache import INT8, block_bytes
from headway.engine.model_source import resolve_model
from headway.engine.preemption import Mode
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import RequestSpec, Sampling

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

ANSWER_TOKENS = 100
PROMPTS = 50
BLOCK_SIZE = 16
AMPLE, SHORT = 900, 130
"""Blocks of the pool: for 32 requests with room to spare, and for some eight."""
TEXT = (Path(__file__).parent / "prompt_text.txt").read_text(encoding="utf-8")
SAMPLINGS = (
    Sampling(temperature=0.0, ignore_eos=True, logprobs=0),
    Sampling(temperature=0.0, ignore_eos=True),
    Sampling(temperature=0.8, top_p=0.95, ignore_eos=True, logprobs=2),
    Sampling(temperature=1.0, top_k=50, min_p=0.01, repetition_penalty=1.1, ignore_eos=True),
)


@dataclass(frozen=True, slots=True)
class Worker:
    """Two runners of one model: with room, and too small for what is asked."""

    ample: TorchRunner
    short: TorchRunner
    tokenizer: Tokenizer

    def tell(
        self, specs: list[RequestSpec], under: Circumstances, *, is_short: bool = False
    ) -> dict[str, list[Entry]]:
        result = tell(self.short if is_short else self.ample, self.tokenizer, specs, under)
        if under.gives_way is not None:
            assert result.preemptions[under.gives_way] > 5
        return result.answers


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


FORMS: dict[str, tuple[str, Quantization, KvCacheDType]] = {
    "bfloat16": ("bfloat16", "none", "bf16"),
    "float32": ("float32", "none", "auto"),
    "4-bit weights": ("bfloat16", "auto", "auto"),
}
"""Numbers of activations, form of the weights, and of keys and values."""
EVERY_FORM = pytest.mark.parametrize("form", list(FORMS))


@cache
def worker(form: str, threads: int = 2) -> Worker:
    native_library()
    checkpoint = open_checkpoint(resolve_model("smollm2-135m").path)
    dtype, quantization, kv = FORMS[form]
    number = {"bfloat16": torch.bfloat16, "float32": torch.float32, "4-bit weights": INT8}[form]
    size = block_bytes(checkpoint.config, BLOCK_SIZE, number)

    def load(blocks: int, slots: int = 0) -> TorchRunner:
        return TorchRunner.load(
            checkpoint,
            dtype=dtype,
            kv_cache_bytes=blocks * size,
            host_cache_bytes=slots * size,
            block_size=BLOCK_SIZE,
            threads=threads,
            cpu=CpuSettings("native", quantization, CACHE_DIR, kv_cache_dtype=kv),
            is_deterministic=True,
        )

    return Worker(load(AMPLE), load(SHORT, slots=AMPLE), checkpoint.tokenizer())


@cache
def requests(form: str) -> list[RequestSpec]:
    """Questions, and pieces of a text of up to 250 tokens, with common beginnings among them."""
    tokenizer = worker(form).tokenizer
    prompts = [tokenizer.render_chat([{"role": "user", "content": question}]) for question in QUESTIONS]
    text = tokenizer.encode(TEXT, add_special_tokens=False)
    prompts += [text[31 * (i // 3) :][: 3 + 8 * i] for i in range(PROMPTS - len(prompts))]
    return [
        RequestSpec(f"r{i}", 0, prompt, replace(SAMPLINGS[i % len(SAMPLINGS)], seed=i), ANSWER_TOKENS)
        for i, prompt in enumerate(prompts)
    ]


@cache
def alone(form: str) -> dict[str, list[Entry]]:
    answers = worker(form).tell(requests(form), Circumstances())
    assert len(answers) == PROMPTS
    assert all(len(answer) == ANSWER_TOKENS for answer in answers.values())
    return answers


CIRCUMSTANCES = {
    "batches of 2": Circumstances(sequences=2),
    "batches of 3, staggered": Circumstances(sequences=3, steps_apart=20),
    "batches of 8, backwards": Circumstances(sequences=8, is_reversed=True, steps_apart=5),
    "batches of 16, look-ahead": Circumstances(sequences=16, steps_apart=2, looks_ahead=True),
    "batches of 32, staggered": Circumstances(sequences=32, steps_apart=1),
    "chunks of 24": Circumstances(sequences=16, step_tokens=24),
    "chunks of 70": Circumstances(sequences=16, step_tokens=70, steps_apart=3),
    "chunks of 512": Circumstances(sequences=32, step_tokens=512),
}


@EVERY_FORM
@pytest.mark.parametrize("name", list(CIRCUMSTANCES))
def test_answers_are_those_of_each_request_alone(form: str, name: str) -> None:
    assert worker(form).tell(requests(form), CIRCUMSTANCES[name]) == alone(form)


@EVERY_FORM
@pytest.mark.parametrize("mode", list(Mode))
def test_who_had_to_give_way_says_what_it_says_alone(form: str, mode: Mode) -> None:
    under = Circumstances(sequences=24, step_tokens=96, gives_way=mode)
    assert worker(form).tell(requests(form), under, is_short=True) == alone(form)


@EVERY_FORM
def test_another_worker_goes_on_as_the_first_would_have(form: str) -> None:
    whole = alone(form)
    kept = {spec.request_id: 1 + 37 * place % 98 for place, spec in enumerate(requests(form))}
    specs = [resumed(spec, whole[spec.request_id], kept[spec.request_id]) for spec in requests(form)]
    rest = worker(form, threads=1).tell(specs, Circumstances(sequences=11, step_tokens=64))
    assert rest == {name: answer[kept[name] :] for name, answer in whole.items()}


def test_the_third_form_is_what_the_option_serves_by_default() -> None:
    runner = worker("4-bit weights").ample
    assert runner.kernels.startswith("native (Q4_1, head Q8_0, KV int8), deterministic ")
    assert runner.block_count == AMPLE
