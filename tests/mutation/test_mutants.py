"""The tests notice: each mutant, one wrong line in a copy of the tree, makes its test fail.

``python -m tests.mutation.test_mutants [part of a name]`` prints the list and who was killed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.mutation.look_ahead_mutants import LOOK_AHEAD_MUTANTS
from tests.mutation.memory_mutants import MEMORY_MUTANTS
from tests.mutation.mutant import Mutant
from tests.mutation.queue_mutants import QUEUE_MUTANTS
from tests.mutation.scheduling_mutants import SCHEDULING_MUTANTS
from tests.mutation.speculation_mutants import SPECULATION_MUTANTS

MUTANTS = MEMORY_MUTANTS + SCHEDULING_MUTANTS + LOOK_AHEAD_MUTANTS + SPECULATION_MUTANTS + QUEUE_MUTANTS
ROOT = Path(__file__).parents[2]
COPIED = ("engine", "kernels", "queueing", "gateway", "services", "src", "tests", "pyproject.toml")


def copy_tree(target: Path) -> None:
    """What the mutants' tests need."""
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, target / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, target / name)


def run(tree: Path, test: str) -> subprocess.CompletedProcess[str]:
    """One test in a copy."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not soak", test]
    path = os.pathsep.join([str(tree / "src"), str(tree)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def is_killed(tree: Path, mutant: Mutant) -> bool:
    """Whether the mutant's test fails (and not for a mistake of ours), with the copy put right afterwards."""
    file = tree / mutant.file
    text = file.read_text()
    file.write_text(text.replace(mutant.right, mutant.wrong))
    try:
        result = run(tree, mutant.test)
    except subprocess.TimeoutExpired:
        return True  # an endless loop is noticed, too
    finally:
        file.write_text(text)
    if result.returncode not in (0, 1) or "SyntaxError" in result.stdout or "NameError" in result.stdout:
        raise AssertionError(f"{mutant.name}: the mutant is broken\n{result.stdout[-2000:]}")
    return result.returncode == 1


def still_applies(mutant: Mutant) -> bool:
    """Whether its line and its test are there."""
    is_there_once = (ROOT / mutant.file).read_text().count(mutant.right) == 1
    return is_there_once and (ROOT / mutant.test.split("::", maxsplit=1)[0]).is_file()


def test_every_mutant_still_applies() -> None:
    assert [mutant.name for mutant in MUTANTS if not still_applies(mutant)] == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_mutant_is_killed(tmp_path: Path) -> None:
    copy_tree(tmp_path)
    for test in sorted({mutant.test for mutant in MUTANTS}):
        assert run(tmp_path, test).returncode == 0, f"{test} fails without any mutant"
    survivors = [mutant.name for mutant in MUTANTS if not is_killed(tmp_path, mutant)]
    assert survivors == []


def main() -> None:
    """Print each mutant and what became of it."""
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    chosen = [mutant for mutant in MUTANTS if part in mutant.name]
    with tempfile.TemporaryDirectory() as folder:
        copy_tree(Path(folder))
        killed = 0
        for mutant in chosen:
            died = is_killed(Path(folder), mutant)
            killed += died
            print(f"{'killed' if died else 'ALIVE '}  {mutant.name}  [{mutant.test}]", flush=True)
    print(f"{killed} of {len(chosen)} killed")


if __name__ == "__main__":
    main()
