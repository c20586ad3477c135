"""In place of the grammar library where there is none: the engine loads, and holds no answer to a form."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

NAMES = ("llguidance", "llguidance.numpy", "llguidance.gbnf_to_lark")


class Absent:
    """Anything of the library: it can be made, and is of no use."""

    def __init__(self, *_: object, **__: object) -> None:
        """Loading a model makes some."""

    def __getattr__(self, name: str) -> Any:
        raise ModuleNotFoundError(f"llguidance is not installed, and its {name} is needed")


def _named(name: str) -> type[Absent]:
    if name.startswith("__"):
        raise AttributeError(name)  # nothing that Python asks of modules
    return Absent


def install() -> None:
    """Before anything of the engine is imported; does nothing where the library is."""
    if sys.modules.get(NAMES[0]) is not None or find_spec(NAMES[0]) is not None:
        return
    for name in NAMES:
        module = sys.modules[name] = ModuleType(name)
        module.__getattr__ = _named  # type: ignore[method-assign]  # PEP 562


def is_installed() -> bool:
    """Whether what the engine has imported is the library itself."""
    return getattr(sys.modules.get(NAMES[0]), "__spec__", None) is not None
