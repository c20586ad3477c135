"""Tiles that were chosen, in a file beside the other things that a start makes for the next one.

    tiles-<digest>.json  {"device", "triton", "code", "choices": {trial: {"tile", "microseconds": {tile: …}}}}

The digest is over the first three: another chip, compiler or kernel has a file of its own, and none is ever
wrong for who reads it. The file is written whole under its name. Two workers that start at once may each
write theirs: what one of them measured is then measured once more, some day. A file that cannot be read, or
not be written, costs a measurement and is no error.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

from headway.engine.tile_choice import Choice
from headway.engine.whole_file import write_whole
from headway.kernels.launch import DEFAULT_TILE


@dataclass(frozen=True, slots=True)
class TileRecordKey:
    """What all choices of a file depend on."""

    device: str
    """As the driver names it: chips of one architecture differ in what they are fastest with."""
    triton: str
    """Its version."""
    code: str
    """Digest of the kernels' sources, and of what measures them."""


@dataclass(frozen=True, slots=True)
class TileRecord:
    """The file of one key in a folder."""

    folder: Path
    key: TileRecordKey

    @property
    def path(self) -> Path:
        """Where it is, or would be."""
        digest = hashlib.sha256(repr(self.key).encode()).hexdigest()
        return self.folder / f"tiles-{digest[:16]}.json"

    def read(self) -> dict[str, Choice]:
        """By trial; empty: nothing is there. ValueError or OSError: it cannot be read, in words."""
        try:
            content: object = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            return {}
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{self.path} is damaged: {error}") from error
        choices = _fields((_fields(content) or {}).get("choices"))
        if choices is None:
            raise ValueError(f"{self.path} is damaged: it holds no choices")
        return {trial: choice for trial, entry in choices.items() if (choice := _choice(entry)) is not None}

    def add(self, choices: Mapping[str, Choice]) -> None:
        """Keep these beside what is there. OSError: nothing can be written."""
        try:
            known = self.read()
        except ValueError:
            known = {}  # and it is made anew
        entries = {trial: _entry(choice) for trial, choice in sorted({**known, **choices}.items())}
        content = json.dumps({**asdict(self.key), "choices": entries}, indent=1, ensure_ascii=False)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, lambda file: file.write(content.encode() + b"\n"))


def _entry(choice: Choice) -> dict[str, object]:
    """Without failures: choices that others led to are not kept (``Choice.is_settled``)."""
    return {
        "tile": choice.tile,
        "microseconds": {name: round(1e6 * seconds, 2) for name, seconds in choice.seconds.items()},
    }


def _choice(entry: object) -> Choice | None:
    """None: whoever wrote it, it was not ``_entry``."""
    fields = _fields(entry) or {}
    tile, times = fields.get("tile"), _fields(fields.get("microseconds"))
    if not isinstance(tile, str) or times is None:
        return None
    seconds = {name: _seconds(time) for name, time in times.items()}
    valid = {name: time for name, time in seconds.items() if time is not None}
    is_whole = len(valid) == len(seconds) and (tile in valid or (tile == DEFAULT_TILE and not valid))
    return Choice(tile, valid) if is_whole else None


def _seconds(microseconds: object) -> float | None:
    """None: no time that anything takes."""
    if isinstance(microseconds, bool) or not isinstance(microseconds, int | float):
        return None
    # To JSON 400 digits are an integer, which no float can hold; it also knows NaN and infinity.
    return microseconds / 1e6 or None if 0 < microseconds <= sys.float_info.max else None


def _fields(content: object) -> dict[str, object] | None:
    """Of a JSON object; None: it is none."""
    return cast(dict[str, object], content) if isinstance(content, dict) else None
