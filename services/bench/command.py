"""``headway bench`` and ``headway bench compare``: what they print, write, and end with."""

from __future__ import annotations

import asyncio
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from headway.services.bench.bench_table import table
from headway.services.bench.progress import Progress
from headway.services.bench.settings import BenchSettings
from headway.services.errors import StartError, UsageError
from headway.services.trace_file import check_folder

INVALID: Final = 4
INTERRUPTED: Final = 130
_NEEDED: Final = ("httptools", "uvloop")


def run_bench(settings: BenchSettings, json_file: Path | None, html_file: Path | None) -> int:
    """Measure, print, write; returns the exit code. Raises ServiceError."""
    check_files(json_file, html_file)
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise StartError(f"{missing[0]} is not installed", hint="pip install 'headway[bench]'")
    import uvloop

    from headway.services.bench.run import BenchRun

    run = BenchRun(settings, Progress())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(run.run())
    write(json_file, json.dumps(result, separators=(",", ":")))
    if html_file is not None:
        from headway.services.bench.bench_page import bench_page

        write(html_file, bench_page(result))
    if not _is_stdout(json_file):
        print("\n".join(table(result)))
    if result["interrupted"]:
        return INTERRUPTED
    return 0 if result["valid"] else INVALID


def run_compare(
    files: tuple[Path, ...],
    labels: tuple[str, ...],
    at: float | None,
    json_file: Path | None,
    html_file: Path | None,
) -> int:
    """Read, set side by side, print, write; returns the exit code. Raises UsageError."""
    from headway.services.bench.comparison import compare, read_arms
    from headway.services.bench.comparison_table import comparison_table

    check_files(json_file, html_file)
    comparison = compare(read_arms(files, labels), at)
    write(json_file, json.dumps(comparison.figures()))
    if html_file is not None:
        from headway.services.bench.comparison_page import comparison_page

        write(html_file, comparison_page(comparison))
    if not _is_stdout(json_file):
        print("\n".join(comparison_table(comparison)))
    return 0


def check_files(*files: Path | None) -> None:
    """Raise before the work what would fail after it. Raises UsageError."""
    for file in files:
        if file is not None and not _is_stdout(file):
            check_folder(file)
            if file.is_dir():
                raise UsageError(f"cannot write {file}: it is a folder")


def write(file: Path | None, text: str) -> None:
    """Into a file, or to standard output for ``-``. Raises UsageError."""
    if file is None:
        return
    if _is_stdout(file):
        sys.stdout.write(text + "\n")
        return
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from None


def _is_stdout(file: Path | None) -> bool:
    return file is not None and str(file) == "-"
