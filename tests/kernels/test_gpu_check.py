"""``ops/gpu_check`` where there is no GPU: all of it runs on tiny sizes, and says that it was right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headway.kernels.cases import Case, cases, differences
from headway.kernels.launch import Counts

pytest.importorskip("triton")

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU it takes minutes, and a person reads it")
@pytest.mark.timeout(300)
def test_without_a_gpu_everything_runs_on_tiny_sizes_and_is_right(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "ops" / "gpu_check"), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "gpu_check.json").read_text())
    assert found["wrong"] == []
    assert found["left_out"] == ["two ranks: they need two GPUs, and there are 0"]
    promises = " ".join(check["promise"] for check in found["engine"])
    for words in (
        "mixed step is replayed",
        "right guesses",
        "constrained answers",
        "gives way to host memory",
    ):
        assert words in promises
    assert [each["kernel"] for each in found["kernels"]] == [case.kernel for case in cases(tiny=True)]
    for part in ("ceilings", "engine", "decode", "swaps", "tiles"):
        assert found[part], part
    assert {each["tile"] for each in found["tiles"]} > {"default", "wide", "tall"}
    assert all(each["seconds"] and each["default_seconds"] for each in found["tiles"])
    assert "everything right" in done.stdout
    assert (tmp_path / "gpu_check.md").read_text() in done.stdout


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_two_ranks_are_checked_over_cpus_as_over_gpus() -> None:
    code = "from gpu_checks.rank_checks import check_ranks; print(check_ranks('cpu').problems)"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT / 'ops'}"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "()\n", done.stdout + done.stderr


def test_it_starts_where_only_torch_triton_and_numpy_are_installed() -> None:
    code = """
import sys
sys.modules["llguidance"] = None
sys.path[:0] = ["src", "ops"]
from gpu_checks import absent_grammars
absent_grammars.install()
import gpu_checks.command
from importlib.metadata import packages_distributions
from headway.engine.grammars import Grammars
Grammars(lambda: None, vocab_size=3, end_token_ids=frozenset())
assert not absent_grammars.is_installed()
known = set(packages_distributions())
print(*{name.partition(".")[0] for name in sys.modules} & known)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    brought_by_them = {"functorch", "torchgen", "sympy", "mpmath", "tqdm", "typing_extensions", "jinja2"}
    brought_by_them |= {"markupsafe", "networkx", "filelock", "fsspec", "setuptools", "pkg_resources", "yaml"}
    needed = {"torch", "triton", "numpy", "headway", "llguidance", "_distutils_hack"} | brought_by_them
    assert set(done.stdout.split()) <= needed


def make_case(**tolerances: float) -> Case:
    def prepare(*_: object) -> None:
        raise AssertionError("not needed here")

    return Case("some", "thing", Counts(1, 1, 1), prepare, **tolerances)  # type: ignore[arg-type]  # never called


@pytest.mark.parametrize(
    ("ours", "is_right"),
    [
        ([1.0, 2.0, 100.0], True),
        ([1.0, 2.05, 100.0], True),
        ([1.0, 2.2, 100.0], False),
        ([1.0, float("nan"), 100.0], False),
        ([1.0, 2.0, float("inf")], False),
        ([1.0, 2.0], False),
    ],
)
def test_differences_are_seen(ours: list[float], is_right: bool) -> None:
    expected = torch.tensor([1.0, 2.0, 100.0])
    found = differences(make_case(relative_tolerance=1e-3), (torch.tensor(ours),), (expected,))
    assert (not found) is is_right


def test_integers_must_be_equal_and_infinities_in_their_places() -> None:
    case = make_case(absolute_tolerance=10.0)
    assert differences(case, (torch.tensor([3, 4]),), (torch.tensor([3, 5]),))
    infinite = torch.tensor([float("-inf"), 1.0])
    assert not differences(case, (infinite,), (infinite.clone(),))
    assert differences(case, (-infinite,), (infinite,))
