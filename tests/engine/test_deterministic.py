"""``deterministic``: an answer has the same bits under all circumstances, or the runner refuses to load."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from tests.engine.circumstances import Circumstances, Entry, resumed, tell
from tests.engine.test_torch_runner import CONFIG, MIX, RandomCheckpoint, SpokenCheckpoint
from tests.native_kernels import CACHE_DIR, native_library
from torch import Tensor

from headway.engine.answer import Answer
from headway.engine.cpu_kernels import Computation, CpuSettings, KvCacheDType, Quantization
from headway.engine.deterministic import RowByRowSampler, check_deterministic
from headway.engine.errors import ModelError
from headway.engine.kv_cache import block_bytes
from headway.engine.model_config import ModelConfig
from headway.engine.preemption import Mode
from headway.engine.sampler import SamplingRow
from headway.engine.scripted import ByteTokenizer
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import Admitted, RequestKey, RequestSpec, Sampling, StepPlan, StepResult
from headway.engine.weight_shapes import weight_shapes
from headway.kernels.weight_rows import BLOCK_BYTES, GROUP, WeightKind, WeightRows, dequantized, gguf_rows

MODEL = replace(
    CONFIG,
    vocab_size=ByteTokenizer.vocab_size,
    max_position=256,
    hidden_size=64,
    intermediate_size=96,
    head_dim=16,
)
WINDOW = replace(MODEL, sliding_window=37)
ANSWER_TOKENS = 40
AMPLE, SHORT = 1600, 176
"""Tokens that the pool holds."""


class Form(NamedTuple):
    """Numbers of activations, weights, keys and values."""

    dtype: str
    quantization: Quantization = "none"
    kv_cache_dtype: KvCacheDType = "auto"

    @property
    def block_size(self) -> int:
        """Short ones, so that chunks end anywhere; keys in 8 bits need 16."""
        return 16 if self.kv_cache_dtype == "int8" else 4


FORMS = pytest.mark.parametrize(
    "form",
    [
        Form("bfloat16"),
        Form("bfloat16", "int8"),
        Form("bfloat16", "q4"),
        Form("bfloat16", kv_cache_dtype="int8"),
        Form("bfloat16", "q4", "int8"),
        Form("float32"),
    ],
    ids=[
        "bfloat16",
        "int8 weights",
        "4-bit weights",
        "int8 keys and values",
        "4-bit weights, int8 KV",
        "float32",
    ],
)


class BlockCheckpoint(RandomCheckpoint):
    """One whose layers are 4-bit blocks, as those of the demo model's file are."""

    def blocks(self, name: str) -> WeightRows | None:
        if ".layers." not in name or "norm" in name:
            return None
        outputs, inputs = weight_shapes(self.config)[name]
        generator = torch.Generator().manual_seed(self.names().index(name))
        size = BLOCK_BYTES[WeightKind.Q4_1]
        rows = torch.randint(
            0, 256, (outputs * inputs // GROUP, size), dtype=torch.uint8, generator=generator
        )
        # Scale and least value: numbers as far from 0 as those of the other forms.
        rows[:, :4] = torch.tensor([0.07, -0.52], dtype=torch.float16).view(torch.uint8)
        return gguf_rows(rows.view(outputs, -1), WeightKind.Q4_1)

    def tensor(self, name: str) -> Tensor:
        rows = self.blocks(name)
        return super().tensor(name) if rows is None else dequantized(rows)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors: on shared cores, more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def runner_of(config: ModelConfig, form: Form, tokens: int = AMPLE, threads: int = 1) -> TorchRunner:
    native_library()
    number = torch.float32 if form.dtype == "float32" else torch.bfloat16
    number = torch.uint8 if form.kv_cache_dtype == "int8" else number
    size = block_bytes(config, form.block_size, number) // form.block_size
    return TorchRunner.load(
        BlockCheckpoint(config) if form.quantization == "q4" else RandomCheckpoint(config),
        dtype=form.dtype,
        kv_cache_bytes=tokens * size,
        host_cache_bytes=AMPLE * size,
        block_size=form.block_size,
        threads=threads,
        cpu=CpuSettings(
            "auto",
            form.quantization,
            CACHE_DIR,
            keeps_weights=False,
            kv_cache_dtype=form.kv_cache_dtype,
        ),
        is_deterministic=True,
    )


def requests(count: int = 12) -> list[RequestSpec]:
    """Prompts of 3 to 80 tokens, some with a common beginning; greedy and every kind of draw."""
    beginning = tuple(range(40, 72))
    specs: list[RequestSpec] = []
    for place in range(count):
        own = tuple((31 * place + 17 * i * i) % 250 for i in range(3 + 7 * place))
        sampling = replace(MIX[place % len(MIX)], seed=place, ignore_eos=True, logit_bias=((65, 0.5),))
        prompt = beginning + own[:9] if place % 4 == 3 else own
        specs.append(RequestSpec(f"r{place}", 0, prompt, sampling, ANSWER_TOKENS))
    return specs


@cache
def alone(config: ModelConfig, form: Form) -> dict[str, list[Entry]]:
    return tell(runner_of(config, form), ByteTokenizer(), requests(), Circumstances()).answers


def told(config: ModelConfig, form: Form, under: Circumstances, **runner: Any) -> dict[str, list[Entry]]:
    result = tell(runner_of(config, form, **runner), ByteTokenizer(), requests(), under)
    if under.gives_way is not None:
        assert result.preemptions[under.gives_way] > 3
    return result.answers


@FORMS
@pytest.mark.parametrize("config", [MODEL, WINDOW], ids=["llama", "window"])
@pytest.mark.parametrize(
    "under",
    [
        Circumstances(sequences=2),
        Circumstances(sequences=5, steps_apart=3),
        Circumstances(sequences=12, steps_apart=1, is_reversed=True, looks_ahead=True),
        Circumstances(sequences=4, step_tokens=5, steps_apart=2),
        Circumstances(sequences=6, step_tokens=13),
        Circumstances(sequences=12, step_tokens=64),
    ],
    ids=["pairs", "staggered", "backwards", "chunks of 5", "chunks of 13", "chunks of 64"],
)
def test_answers_are_the_same_bits_in_any_company_and_any_chunks(
    config: ModelConfig, form: Form, under: Circumstances
) -> None:
    assert told(config, form, under) == alone(config, form)


@FORMS
@pytest.mark.parametrize("mode", list(Mode))
def test_who_gave_way_says_the_same_bits_as_undisturbed(form: Form, mode: Mode) -> None:
    under = Circumstances(sequences=10, step_tokens=24, gives_way=mode)
    disturbed = told(MODEL, form, under, tokens=SHORT)
    assert disturbed == alone(MODEL, form)


@FORMS
def test_another_worker_with_other_threads_goes_on_with_the_same_bits(form: Form) -> None:
    whole = alone(MODEL, form)
    kept = {spec.request_id: 3 * place + 1 for place, spec in enumerate(requests())}
    specs = [resumed(spec, whole[spec.request_id], kept[spec.request_id]) for spec in requests()]
    other = runner_of(MODEL, form, threads=3)
    rest = tell(other, ByteTokenizer(), specs, Circumstances(sequences=7, step_tokens=19)).answers
    assert rest == {name: answer[kept[name] :] for name, answer in whole.items()}
    assert other.kernels == runner_of(MODEL, form).kernels, "the marks are equal"


def narrowed(spec: RequestSpec) -> RequestSpec:
    """With answers of three letters, which repeat themselves: guesses are made, right and wrong."""
    bias = tuple((letter, 60.0) for letter in (65, 66, 67))
    return replace(spec, sampling=replace(spec.sampling, logit_bias=bias, logprobs=2))


@FORMS
def test_guesses_change_no_bit(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    runner, specs = runner_of(MODEL, form), [narrowed(spec) for spec in requests()]
    expected = tell(runner, ByteTokenizer(), specs, Circumstances()).answers
    execute, guessed = runner.execute, list[int]()

    def counting(plan: StepPlan) -> StepResult:
        guessed.append(sum(chunk.draft_tokens for chunk in plan.chunks))
        # As if tokens cost nothing: whoever may guess does.
        return replace(execute(plan), elapsed_seconds=0.01)

    monkeypatch.setattr(runner, "execute", counting)
    under = Circumstances(sequences=7, step_tokens=90, draft_tokens=6)
    assert tell(runner, ByteTokenizer(), specs, under).answers == expected
    assert sum(guessed) > 20


def test_the_mark_tells_workers_apart_that_compute_differently() -> None:
    forms = (Form("bfloat16"), Form("bfloat16", "int8"), Form("bfloat16", "q4"), Form("float32"))
    runners = [runner_of(MODEL, form) for form in forms] + [runner_of(WINDOW, forms[0])]
    marks = {runner.kernels.rpartition(" ")[2] for runner in runners}
    assert len(marks) == 5
    assert all(len(mark) == 12 for mark in marks)


# -- Sampling ----------------------------------------


def rows_of(samplings: Sequence[Sampling]) -> list[SamplingRow]:
    admitted = [
        Admitted(RequestKey(f"s{i}", 0), (1, 2, 3), (), sampling) for i, sampling in enumerate(samplings)
    ]
    return [SamplingRow(Answer(newcomer), 0) for newcomer in admitted]


@pytest.mark.parametrize("vocab", [301, 4099])
def test_a_rows_choice_and_logprobs_are_its_own_whatever_stands_beside_it(vocab: int) -> None:
    samplings = [replace(MIX[i % len(MIX)], seed=i, logprobs=i % 5, logit_bias=()) for i in range(24)]
    logits = torch.randn(24, vocab, generator=torch.Generator().manual_seed(3)) * 4
    together = RowByRowSampler(vocab, frozenset({2})).sample(logits.clone(), rows_of(samplings))
    torch.set_num_threads(3)
    sampler = RowByRowSampler(vocab, frozenset({2}))
    assert sampler.sample(logits.clone(), rows_of(samplings)) == together
    for i, expected in enumerate(together):
        row = rows_of(samplings)[i]
        assert sampler.sample(logits[i : i + 1].clone(), [row]) == (expected,)
    assert torch.get_num_threads() == 3, "its threads are its own affair"


# -- Refusals ----------------------------------------


def load(**options: Any) -> TorchRunner:
    return TorchRunner.load(
        RandomCheckpoint(), kv_cache_bytes=200_000, block_size=4, is_deterministic=True, **options
    )


def test_auto_takes_8_bit_keys_and_values_that_keep_the_bound() -> None:
    native_library()
    runner = TorchRunner.load(
        SpokenCheckpoint(MODEL),
        dtype="bfloat16",
        kv_cache_bytes=1 << 20,
        cpu=CpuSettings("auto", "auto", CACHE_DIR, keeps_weights=False),
        is_deterministic=True,
    )
    assert re.fullmatch(r"native \(.*, KV int8\), deterministic [0-9a-f]{12}", runner.kernels)


def test_torchs_kernels_are_refused_with_the_reason() -> None:
    with pytest.raises(
        ModelError, match=r"--deterministic needs the native CPU kernels.*torch was asked for"
    ):
        load(dtype="float32", cpu=CpuSettings("torch"))
    with pytest.raises(ModelError, match=r"--deterministic needs .*no folder to keep them in"):
        load(dtype="bfloat16", cpu=CpuSettings("auto"))


def test_a_gpu_without_kernels_of_its_own_is_refused() -> None:
    with pytest.raises(ModelError, match=r"needs the GPU's own kernels.*install Triton"):
        check_deterministic(Computation(None, "they are for CPUs"), torch.device("cuda"))


def test_weights_that_follow_from_the_number_of_tokens_are_refused() -> None:
    with pytest.raises(ModelError, match=r"does not go with --quantization q4-int8.*take q4, or auto"):
        load(dtype="bfloat16", cpu=CpuSettings("native", "q4-int8", CACHE_DIR))
