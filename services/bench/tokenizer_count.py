"""Counts a prompt's tokens with a tokenizer on this machine, for servers that do not tell."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from headway.services.bench.prompts import Count
from headway.services.bench.settings import Api
from headway.services.errors import StartError, UsageError


def tokenizer_count(path: Path, api: Api) -> Count:
    """By a ``tokenizer.json`` (the text alone), or a model's folder or GGUF (with its chat template).

    Raises UsageError, StartError.
    """
    if find_spec("tokenizers") is None:
        raise StartError("--tokenizer needs the package tokenizers", hint="pip install tokenizers")
    if not path.exists():
        raise UsageError(f"there is no tokenizer {path}")
    return _of_file(path) if path.suffix == ".json" else _of_model(path, api)


def _of_file(path: Path) -> Count:
    import tokenizers

    try:
        read: Any = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise UsageError(f"{path} is no tokenizer.json: {error}") from None

    async def count(text: str) -> int:
        return len(read.encode(text).ids)

    return count


def _of_model(path: Path, api: Api) -> Count:
    from headway.engine.checkpoint import open_checkpoint
    from headway.engine.errors import ModelError

    try:
        tokenizer = open_checkpoint(path).tokenizer()
    except ModelError as error:
        raise UsageError(f"{path}: {error}") from None

    async def count(text: str) -> int:
        if api == "chat":
            return len(tokenizer.render_chat([{"role": "user", "content": text}]))
        return len(tokenizer.encode(text, add_special_tokens=True))

    return count
