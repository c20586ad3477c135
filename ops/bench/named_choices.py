"""Names on a benchmark's command line, of what it can measure."""

from __future__ import annotations

from collections.abc import Collection


def choose(text: str, known: Collection[str], kind: str) -> list[str]:
    """``a,b``: each once, in the order given; raises ValueError that lists what there is of this kind."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise ValueError(
            f"there is no {kind} {', '.join(unknown) or 'named'}: choose among {', '.join(known)}"
        )
    return list(dict.fromkeys(names))
