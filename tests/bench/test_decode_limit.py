"""What ``make bench-decode`` concludes is what its rounds and the packed weights say."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.test_torch_runner import CONFIG, RandomCheckpoint
from tests.native_kernels import CACHE_DIR, native_library

from headway.engine.cpu_kernels import CpuSettings, Quantization
from headway.engine.native_model import NativeModel
from headway.engine.torch_runner import TorchRunner

FOLDER = Path(__file__).resolve().parent.parent.parent / "ops/bench"
WIDE = replace(CONFIG, hidden_size=64, intermediate_size=96, head_dim=16, vocab_size=320)
"""All sizes are multiples of 32: no panel is padded."""


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """A module of ops/bench by its name; they import each other by name, as scripts do."""
    sys.path.insert(0, str(FOLDER))
    yield import_module
    sys.path.remove(str(FOLDER))


def rounds(bench: Any, *steps: float, large: float = 0.020, own: float = 0.0015) -> list[Any]:
    return [bench("decode_limit").Round(step, large, own) for step in steps]


def figures(bench: Any, *steps: float) -> Any:
    """Of 100 MB of weights beside an array of 1 GB that takes 20 ms: the limit is 2 ms."""
    return bench("decode_limit").figures_of(
        "auto", "native (Q4_1)", 100_000_000, 1_000_000_000, rounds(bench, *steps)
    )


def test_a_step_is_held_against_its_bytes_at_the_measured_rate(bench: Any) -> None:
    found = figures(bench, 0.0024, 0.0020, 0.0030)
    assert found.ceiling_bytes_per_second == pytest.approx(50e9)
    assert found.limit_ms == pytest.approx(2.0)
    assert found.step_ms == pytest.approx(2.4)
    assert found.bytes_per_second == pytest.approx(100e6 / 0.0024)
    assert found.ratio.median == pytest.approx(1.2)
    assert found.own_ratio.median == pytest.approx(1.6)
    assert found.own_bytes_per_second == pytest.approx(100e6 / 0.0015)


@pytest.mark.parametrize(("step", "is_met"), [(0.0029, True), (0.0031, False)])
def test_one_and_a_half_times_the_limit_is_the_goal(bench: Any, step: float, is_met: bool) -> None:
    found = figures(bench, step)
    assert found.is_met is is_met
    text = "\n".join(bench("decode_limit").table([found], 954, 2))
    assert ("ABOVE the goal" in text) is not is_met


@pytest.mark.parametrize("step", [0.0029, 0.0031])
def test_a_missed_goal_is_an_exit_code(bench: Any, step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    module = bench("decode_limit")
    monkeypatch.setattr(module, "measure", lambda _: [figures(bench, step)])
    monkeypatch.setattr(sys, "argv", ["decode_limit.py"])
    assert module.main() == int(step > 0.003)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--forms", "torch"], "no form torch: choose among none, int8"),
        (["--forms", ""], "no form named"),
        (["--context", "4096"], "--context is 1 to 2048"),
        (["--rounds", "0"], "1 or more"),
    ],
)
def test_a_wrong_option_ends_with_a_message(
    bench: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        bench("decode_limit").parse(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("threads", [1, 3])
def test_every_byte_is_read_once_each_time(bench: Any, threads: int) -> None:
    native_library()  # where this CPU or its compiler cannot have it, nothing is to be measured
    module = bench("read_bandwidth")
    readers = module.Readers(threads)
    for count in (256, 3 << 20, (5 << 20) + 700):
        values = module.array_of(count)
        assert values.nbytes >= count
        values.copy_(torch.arange(len(values)))
        for _ in range(3):
            seconds, total = readers.read(values)
            assert total == len(values) * (len(values) - 1) // 2
            assert seconds > 0.0
    readers.close()


@pytest.mark.parametrize(("quantization", "per_weight"), [("none", 2.0), ("int8", 34 / 32)])
def test_bytes_of_a_decode_are_those_of_every_product_and_the_head(
    quantization: Quantization, per_weight: float
) -> None:
    native_library()
    runner = TorchRunner.load(
        RandomCheckpoint(WIDE),
        dtype="bfloat16",
        kv_cache_bytes=1 << 20,
        cpu=CpuSettings("native", quantization, CACHE_DIR, keeps_weights=False),
    )
    assert isinstance(runner._model, NativeModel)
    hidden, inner, heads = WIDE.hidden_size, WIDE.intermediate_size, WIDE.head_dim
    query, kv = WIDE.query_head_count * heads, WIDE.kv_head_count * heads
    layer = hidden * (query + 2 * kv) + query * hidden + 3 * hidden * inner
    weights = WIDE.layer_count * layer + WIDE.vocab_size * hidden
    assert runner._model.weight_bytes(1) == pytest.approx(per_weight * weights)
