"""What Python 3.11.2 (Debian 12) does differently from the Python that these tests mostly run on."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("engine", "gateway", "kernels", "queueing", "services")
SOURCES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


def raised_in_except_star(path: Path) -> list[int]:
    """The lines where a new error is raised."""
    stars = (node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.TryStar))
    handlers = (handler for star in stars for handler in star.handlers)
    return [n.lineno for h in handlers for n in ast.walk(h) if isinstance(n, ast.Raise) and n.exc]


def test_nothing_is_raised_in_except_star() -> None:
    # Before 3.11.4 the error comes out wrapped in a group (python/cpython#103590), and nobody catches it.
    assert len(SOURCES) > 100
    found = {str(path.relative_to(ROOT)): raised_in_except_star(path) for path in SOURCES}
    assert {path: lines for path, lines in found.items() if lines} == {}
