"""The import table of design.md, checked on the source and in a fresh interpreter."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("kernels", "engine", "queueing", "gateway", "services")

MAY_IMPORT = {
    "kernels": {"kernels"},
    "engine": {"engine", "kernels"},
    "queueing": {"queueing"},
    "gateway": {"gateway", "queueing"},
    "services": set(FOLDERS),
}
"""Folder -> which of our folders its files may import."""

CORE = {
    "acceptance",
    "admission",
    "band",
    "block_pool",
    "block_table",
    "blocks",
    "budget",
    "chat_turns",
    "checks",
    "cost_model",
    "deadlines",
    "detokenizer",
    "detours",
    "drafting",
    "drafts",
    "engine",
    "errors",
    "fair",
    "fairness",
    "flight",
    "flights",
    "forecast",
    "forks",
    "giving_way",
    "guess_prices",
    "host_pool",
    "interfaces",
    "isolation",
    "last_step",
    "launch_lane",
    "limits",
    "line",
    "look_ahead",
    "memory",
    "memory_settings",
    "overcommit",
    "plan_wire",
    "plain_step",
    "planner",
    "policy",
    "preemption",
    "prefix_cache",
    "prompt_lookup",
    "ranked_runner",
    "releases",
    "request",
    "roster",
    "runner_thread",
    "scheduler",
    "scripted",
    "shares",
    "shipments",
    "speculation",
    "step_profile",
    "steps",
    "swap_costs",
    "timeline",
    "transcript",
    "values",
}
"""Engine files above the line that engine/README.md draws: the standard library and each other only."""

MEETING_FILES = {"translate.py", "worker_card.py", "job_metrics.py", "metrics.py"}
"""Where the engine's values meet the queue's: jobs and answers; a worker's load on its card; and what it
measures of both, since an objective is the engine's word and the job that it was promised is the queue's."""


def sources(folder: str) -> Iterator[Path]:
    yield from sorted((ROOT / folder).rglob("*.py"))


def imported_modules(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_imports_only_downwards(folder: str) -> None:
    seen = 0
    for path in sources(folder):
        for module in imported_modules(path):
            if module.startswith("headway."):
                assert module.split(".")[1] in MAY_IMPORT[folder], f"{path.name} imports {module}"
                seen += 1
    assert seen, f"{folder} imports nothing of ours: is the test looking at the right files?"


def test_the_scheduling_core_imports_only_the_standard_library_and_itself() -> None:
    for name in CORE:
        for module in imported_modules(ROOT / "engine" / f"{name}.py"):
            ours = module.startswith("headway.engine.") and module.rpartition(".")[2] in CORE
            assert ours or module.partition(".")[0] in sys.stdlib_module_names, f"{name} imports {module}"


def test_engine_and_queueing_meet_where_it_is_written_down() -> None:
    meeting: set[str] = set()
    for path in sources("services"):
        modules = set(imported_modules(path))
        if "headway.engine.values" in modules and any(m.startswith("headway.queueing.") for m in modules):
            meeting.add(path.name)
    assert meeting == MEETING_FILES


def test_only_services_reads_environment_clock_and_signals() -> None:
    for folder in ("kernels", "engine", "queueing", "gateway"):
        for path in sources(folder):
            for node in ast.walk(ast.parse(path.read_text())):
                name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
                reads = name.startswith("time.") or name in {
                    "os.getenv",
                    "datetime.now",
                    "datetime.datetime.now",
                }
                assert not reads, f"{path}:{getattr(node, 'lineno', 0)} calls {name}"
                environ = isinstance(node, ast.Attribute) and ast.unparse(node) == "os.environ"
                assert not environ, f"{path} reads the environment"
            assert "signal" not in set(imported_modules(path)), f"{path} handles signals"


def test_root_folders_have_no_init_and_are_linked() -> None:
    for folder in FOLDERS:
        assert not (ROOT / folder / "__init__.py").exists()
        link = ROOT / "src" / "headway" / folder
        assert link.is_symlink()
        assert str(link.readlink()) == f"../../{folder}"


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("headway", {"torch", "redis", "pydantic", "fastapi"}),
        ("headway.engine.scheduler", {"torch", "triton", "redis", "numpy", "pydantic"}),
        ("headway.engine.engine", {"torch", "triton", "redis", "numpy", "pydantic"}),
        ("headway.queueing.client", {"torch", "triton", "fastapi", "structlog", "numpy"}),
        ("headway.gateway.app", {"torch", "triton", "numpy", "tokenizers"}),
        ("headway.services.cli", {"torch", "triton", "numpy", "fastapi", "uvicorn", "tokenizers"}),
    ],
)
def test_importing_stays_light(module: str, forbidden: set[str]) -> None:
    program = f"import sys, {module}; print('\\n'.join(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT.parent
    ).stdout.split()
    assert module in loaded
    assert not forbidden & set(loaded)
