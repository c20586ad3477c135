"""Prints what Headway and the named extra depend on, one requirement a line: ``requirements.py worker``.

Images install dependencies before our own wheel, so a change of our code leaves the layer with torch alone.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path


def main() -> int:
    """Read pyproject.toml in the working directory; 2 for an extra that it does not have."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    unknown = next((extra for extra in sys.argv[1:] if extra not in extras), None)
    if unknown is not None:
        print(f"pyproject.toml has no extra {unknown!r}; it has: {', '.join(extras)}", file=sys.stderr)
        return 2
    wanted = [*project["dependencies"], *(each for extra in sys.argv[1:] for each in needs(extra, extras))]
    print("\n".join(dict.fromkeys(wanted)))
    return 0


def needs(extra: str, extras: dict[str, list[str]]) -> Iterator[str]:
    """What an extra asks for; one that it names of ours (``headway[gateway]``) by what that one asks for."""
    for requirement in extras[extra]:
        ours = re.fullmatch(r"headway\[([\w,-]+)\]", requirement)
        if ours is None:
            yield requirement
        else:
            yield from (each for name in ours[1].split(",") for each in needs(name, extras))


if __name__ == "__main__":
    sys.exit(main())
