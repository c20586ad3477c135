"""Files that are whole under their name whenever anybody looks, however many write them and whoever dies."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Final

BEGUN: Final = ".begun-"
"""How the names of files begin that are not whole yet."""


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write a file beside ``path`` and give it that name, or raise and change nothing."""
    descriptor, name = tempfile.mkstemp(prefix=BEGUN, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
