"""What ``make bench-engine`` says is what was measured; bad options are refused."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from headway.services.profile import Budget

SCRIPT = Path(__file__).resolve().parent.parent.parent / "ops/bench/engine.py"


@pytest.fixture(scope="module")
def bench() -> Any:
    spec = spec_from_file_location("engine_bench", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["engine_bench"] = module_from_spec(spec)
    sys.path.insert(0, str(SCRIPT.parent))
    spec.loader.exec_module(module)
    sys.path.remove(str(SCRIPT.parent))
    yield module
    del sys.modules["engine_bench"]


def budget(tokens: int, wall: float, products: float) -> Budget:
    return Budget(wall, 10, tokens, {"products": products, "thread": wall - products})


def test_rates_and_ratios_are_medians_of_the_same_rounds(bench: Any) -> None:
    base = [budget(100, 1.0, 0.5), budget(100, 2.0, 0.5), budget(100, 1.0, 0.5)]
    own = [budget(200, 1.0, 0.9), budget(300, 2.0, 0.9), budget(100, 1.0, 0.9)]
    assert bench.rate(own) == 150.0
    assert bench.ratio(own, base) == 2.0


def test_the_table_shows_each_parts_share_of_a_step(bench: Any) -> None:
    figures = bench.report({"fast": {4: [budget(100, 1.0, 0.75)]}}, {"slow": "no compiler"})
    text = "\n".join(bench.table(figures))
    assert "100.0 tokens/s (1.00 of the first), step  100.00 ms: products 75.0%, thread 25.0%" in text
    assert "slow is left out: no compiler" in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--arms", "fp8"], "no arm fp8: choose among native-auto"),
        (["--arms", ""], "no arm named"),
        (["--concurrencies", "0"], "--concurrencies '0': give numbers from 1"),
        (["--rounds", "0"], "1 or more"),
    ],
)
def test_a_wrong_option_ends_with_a_message(
    bench: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.parse(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
