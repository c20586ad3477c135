"""C++ of the benches beside the kernels': compiled with the same flags, into a folder that goes again."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

from headway.kernels.native_library import COMPILERS, FLAGS, SOURCES, find_compiler


def compiled(name: str, folder: Path, *kernels: str) -> ctypes.CDLL:
    """``name`` of this folder as a library, with these sources of the kernels in it."""
    target = folder / f"{Path(name).stem}.so"
    sources = [Path(__file__).with_name(name), *(SOURCES / kernel for kernel in kernels)]
    subprocess.run(
        [find_compiler(COMPILERS), *FLAGS, "-w", f"-I{SOURCES}", *map(str, sources), "-o", str(target)],
        check=True,
    )
    return ctypes.CDLL(str(target))
