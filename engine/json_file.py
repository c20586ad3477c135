"""JSON files of a model folder. Standard library only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

from headway.engine.errors import ModelError


def read_json_object(path: Path, *, required: bool) -> dict[str, object]:
    """The object in a JSON file, empty if an optional file is absent; ModelError names the file."""
    try:
        content: object = json.loads(path.read_bytes())
    except FileNotFoundError:
        if required:
            raise ModelError(f"{path}: the file is missing; fetch the whole model folder") from None
        return {}
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); check its rights") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path}: damaged JSON ({error}); fetch the file again") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path}: expected a JSON object; fetch the file again")
    return cast(dict[str, object], content)
