"""The runner on native kernels keeps every promise of the runner, and falls back to torch in words."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from tests.engine import test_host_cache as host_cache
from tests.engine import test_look_ahead_torch as look_ahead
from tests.engine import test_torch_batching as batching
from tests.engine.test_torch_runner import GREEDY, MIX, Answers, RandomCheckpoint
from tests.native_kernels import CACHE_DIR, native_library

from headway.engine.checkpoint import Checkpoint
from headway.engine.cpu_kernels import CpuSettings, Quantization
from headway.engine.errors import InvariantError, ModelError
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import Admitted, Chunk, RequestKey, Sampling, StepPlan
from headway.kernels import native_library as library

NATIVE = CpuSettings("native", "none", CACHE_DIR)


class NativeRunner:
    """Loads what others load, in bfloat16 on the native kernels."""

    @staticmethod
    def load(checkpoint: Checkpoint, **options: Any) -> TorchRunner:
        native_library()
        return TorchRunner.load(checkpoint, **{**options, "dtype": "bfloat16", "cpu": NATIVE})


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny tensors: on shared cores, more threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def runner() -> TorchRunner:
    return NativeRunner.load(RandomCheckpoint(), kv_cache_bytes=200_000, block_size=4)


@pytest.fixture
def native_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "TorchRunner", NativeRunner)
    monkeypatch.setattr(look_ahead, "TorchRunner", NativeRunner)
    monkeypatch.setattr(host_cache, "TorchRunner", NativeRunner)


# -- What every runner promises, here to the bit and in bfloat16 ----------------------------------------


def test_answers_depend_neither_on_the_batch_nor_on_chunks_nor_on_a_resume(runner: TorchRunner) -> None:
    together = Answers(runner).run(MIX, 12)
    for index, sampling in MIX.items():
        assert Answers(runner).run({index: sampling}, 12)[index] == together[index]
    for chunk_tokens in (1, 3, 8):
        assert Answers(runner, chunk_tokens).run(MIX, 12) == together
    head = {index: answer[:5] for index, answer in together.items()}
    assert Answers(runner, chunk_tokens=7, epoch=2).run(MIX, 12, resumed=head) == together


def test_the_company_in_a_batch_changes_no_answer(native_batches: None) -> None:
    batching.test_the_company_in_a_batch_changes_no_answer()


def test_choices_that_branch_off_one_prompt_answer_as_if_alone(native_batches: None) -> None:
    batching.test_choices_that_branch_off_one_prompt_answer_as_if_each_had_computed_it()


def test_look_ahead_and_recomputing_change_no_answer(native_batches: None) -> None:
    ample, _ = look_ahead.answers(looks_ahead=False, kv_cache_bytes=200_000)
    for looks_ahead in (False, True):
        short, recomputed = look_ahead.answers(looks_ahead=looks_ahead, kv_cache_bytes=10_000)
        assert recomputed > 0
        assert short == ample


def test_an_answer_after_a_swap_is_the_same_as_without_one(native_batches: None) -> None:
    host_cache.test_case_41_an_answer_after_a_swap_is_the_same_as_without_one("bfloat16")


PLAIN = dict.fromkeys(range(4), GREEDY)
"""Nobody asks for more than the most likely token."""
NOT_PLAIN = (
    *(MIX[index] for index in range(1, len(MIX))),
    Sampling(temperature=0.0, logprobs=0),
    Sampling(temperature=0.0, logit_bias=((17, 30.0),)),
    Sampling(temperature=0.0, min_tokens=4),
    Sampling(temperature=0.0, presence_penalty=0.5),
)


class Spied:
    """How often the model's steps were plain, and how often of any kind."""

    def __init__(self, runner: TorchRunner, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ways: list[str] = []
        for way in ("decode", "sample"):
            monkeypatch.setattr(runner._model, way, partial(self._take, way, getattr(runner._model, way)))

    def _take(self, way: str, step: Any, *given: Any) -> Any:
        self.ways.append(way)
        return step(*given)


def test_steps_of_plain_decodes_bring_what_the_long_way_brings(
    runner: TorchRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    spied = Spied(runner, monkeypatch)
    short = Answers(runner).run(PLAIN, 12)
    assert spied.ways == ["sample"] + 11 * ["decode"]  # the first step holds prompts
    monkeypatch.setattr(TorchRunner, "_is_plain", lambda *_: False)
    assert Answers(runner).run(PLAIN, 12) == short
    assert spied.ways[12:] == 12 * ["sample"]


@pytest.mark.parametrize("sampling", NOT_PLAIN)
def test_who_asks_for_more_than_the_most_likely_token_goes_the_long_way(
    runner: TorchRunner, monkeypatch: pytest.MonkeyPatch, sampling: Sampling
) -> None:
    spied = Spied(runner, monkeypatch)
    answers = Answers(runner).run({0: GREEDY, 1: sampling}, 6)
    assert spied.ways == 6 * ["sample"]
    assert Answers(runner).run({0: GREEDY}, 6)[0] == answers[0]


def test_plain_steps_check_their_chunks_and_tell_the_same_results(runner: TorchRunner) -> None:
    key = RequestKey("plain", 0)
    runner.execute(StepPlan(1, (Chunk(key, 0, (5, 6), (0,), True),), (Admitted(key, (5, 6), (), GREEDY),)))
    decode = Chunk(key, 2, (7,), (0,), samples=True)
    result = runner.execute(StepPlan(2, (decode,)))
    assert (result.step, result.copied_step, result.copy_times) == (2, 2, ())
    assert result.times is not None
    with pytest.raises(InvariantError, match="within its 1 blocks"):
        runner.execute(StepPlan(3, (decode._replace(start=4),)))
    with pytest.raises(InvariantError, match="never admitted or is released"):
        runner.execute(StepPlan(4, (decode._replace(key=RequestKey("plain", 1)),)))
    runner.execute(StepPlan(5, (), released=(key,)))
    with pytest.raises(InvariantError, match="never admitted or is released"):
        runner.execute(StepPlan(6, (decode,)))


# -- Where the kernels cannot run ----------------------------------------


def load(cpu: CpuSettings, **options: Any) -> TorchRunner:
    defaults: dict[str, Any] = {"dtype": "bfloat16", "kv_cache_bytes": 200_000, "block_size": 4}
    return TorchRunner.load(RandomCheckpoint(), **{**defaults, **options}, cpu=cpu)


def test_without_a_compiler_torch_computes_and_the_log_can_say_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(library, "FEATURES", ())
    monkeypatch.setattr(library.find_compiler, "__defaults__", None)
    monkeypatch.setattr(library.load_native, "__defaults__", (("no-such-compiler",),))
    runner = load(CpuSettings("auto", "auto", tmp_path))
    assert runner.kernels.startswith("torch (no C++ compiler")
    assert len(Answers(runner).run(MIX, 3)) == len(MIX)
    with pytest.raises(ModelError, match=r"native CPU kernels cannot run: no C\+\+ compiler .*install one"):
        load(CpuSettings("native", "auto", tmp_path))
    with pytest.raises(ModelError, match="quantization int8 needs the native CPU kernels"):
        load(CpuSettings("auto", "int8", tmp_path))


@pytest.mark.parametrize(
    ("cpu", "options", "reason"),
    [
        (CpuSettings("torch", "auto", CACHE_DIR), {}, "torch was asked for"),
        (CpuSettings("auto", "auto", CACHE_DIR), {"block_size": 5}, "odd"),
        (CpuSettings("auto", "auto", None), {}, "no folder"),
    ],
)
def test_torch_computes_where_the_kernels_do_not(
    cpu: CpuSettings, options: dict[str, Any], reason: str
) -> None:
    runner = load(cpu, **options)
    assert runner.kernels.startswith("torch (")
    assert reason in runner.kernels


@pytest.mark.parametrize(("quantization", "kinds"), [("none", "BF16"), ("int8", "Q8_0")])
def test_what_computes_is_told_with_its_weights(quantization: Quantization, kinds: str) -> None:
    native_library()
    runner = load(CpuSettings("auto", quantization, CACHE_DIR))
    assert runner.kernels.startswith(f"native ({kinds}")


def test_four_bits_are_read_from_a_file_and_never_made() -> None:
    native_library()
    with pytest.raises(ModelError, match="q4 reads the 4-bit blocks of a GGUF file"):
        load(CpuSettings("native", "q4", CACHE_DIR))
