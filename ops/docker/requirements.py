"""Prints what Headway and the named extra depend on, one requirement a line: ``requirements.py worker``.

Images install dependencies before our own wheel, so a change of our code leaves the layer with torch alone.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main() -> int:
    """Read pyproject.toml in the working directory; 2 for an extra that it does not have."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    requirements = list(project["dependencies"])
    for extra in sys.argv[1:]:
        if extra not in extras:
            print(f"pyproject.toml has no extra {extra!r}; it has: {', '.join(extras)}", file=sys.stderr)
            return 2
        requirements += extras[extra]
    print("\n".join(requirements))
    return 0


if __name__ == "__main__":
    sys.exit(main())
