"""Builds the wheel and proves two things: it holds exactly our files, and it works as a bare light client.

Run through ``make wheel-check``. Some build backends do not follow the links in ``src/headway`` and would
ship an empty package without a word; hence the comparison with the list of tracked files.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("engine", "gateway", "kernels", "queueing", "services")
SHIPPED_SUFFIXES = {".py", ".lua", ".json", ".html", ".css", ".js", ".svg", ".jinja", ".cpp", ".h", ".txt"}

LIGHT_CLIENT = """
import sys
from headway.queueing.client import Client
heavy = {"torch", "numpy", "fastapi", "uvicorn", "structlog", "celery"} & set(sys.modules)
assert not heavy, f"the light client imports {sorted(heavy)}"
"""


def main() -> int:
    """Return 0 when the wheel is right; print what is wrong otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_wheel(Path(folder))
        problems = compare(expected_files(), shipped_files(wheel))
        if problems:
            print("\n".join(problems), file=sys.stderr)
            return 1
        try_light_client(wheel, Path(folder) / "venv")
    print(f"{wheel.name}: file list and light client are right")
    return 0


def build_wheel(folder: Path) -> Path:
    """Build into ``folder``: in the tree, setuptools would also ship what an earlier build left there."""
    settings = folder / "build.cfg"
    settings.write_text(f"[build]\nbuild_base = {folder / 'build'}\n", encoding="utf-8")
    command = (sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT))
    run(*command, environment={"DIST_EXTRA_CONFIG": str(settings)})
    (wheel,) = folder.glob("*.whl")
    return wheel


def expected_files() -> set[str]:
    """Every tracked file of the five folders that users need, by its name inside the wheel."""
    listed = subprocess.run(
        ["git", "ls-files", *FOLDERS], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\n")
    ours = {f"headway/{name}" for name in listed if Path(name).suffix in SHIPPED_SUFFIXES}
    return ours | {"headway/__init__.py", "headway/py.typed"}


def shipped_files(wheel: Path) -> set[str]:
    """What the wheel holds, its own metadata left out."""
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def compare(expected: set[str], shipped: set[str]) -> list[str]:
    """One line for each file that is missing or should not be there."""
    missing = [f"missing from the wheel: {name}" for name in sorted(expected - shipped)]
    extra = [f"in the wheel, but not ours to ship: {name}" for name in sorted(shipped - expected)]
    return missing + extra


def try_light_client(wheel: Path, folder: Path) -> None:
    """Install the bare wheel into an empty environment, import the client, ask the command its version."""
    venv.create(folder, with_pip=True)
    pip = [str(folder / "bin/pip"), "install", "--quiet", "--disable-pip-version-check"]
    run(*pip, "-c", str(ROOT / "constraints.txt"), str(wheel))
    run(str(folder / "bin/python"), "-c", LIGHT_CLIENT, cwd=folder)
    run(str(folder / "bin/headway"), "--version", cwd=folder)


def run(*command: str, cwd: Path = ROOT, environment: Mapping[str, str] | None = None) -> None:
    """Run quietly; show the output and stop when it fails."""
    done = subprocess.run(
        command, cwd=cwd, env=os.environ | (environment or {}), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}\n{done.stderr}")


if __name__ == "__main__":
    sys.exit(main())
