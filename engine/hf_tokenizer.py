"""The tokenizer of a Hugging Face folder: ``tokenizer.json`` and its companions; no code of theirs is run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, cast

import tokenizers
from tokenizers import AddedToken

from headway.engine.chat_template import ChatTemplate
from headway.engine.errors import ModelError
from headway.engine.json_file import read_json_object
from headway.engine.tokenizer import SpecialIds, Spelling, TextTokenizer, add_tokens, damaged_tokenizer

TOKENIZER_FILE: Final = "tokenizer.json"
_SPECIAL_NAMES: Final = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


def tokenizer_from_folder(folder: Path, eos_token_ids: frozenset[int], *, vocab_size: int) -> TextTokenizer:
    """Load the tokenizer; its own end token joins ``eos_token_ids``, the configuration's."""
    backend = _backend(folder)
    settings = read_json_object(folder / "special_tokens_map.json", required=False)
    settings |= read_json_object(folder / "tokenizer_config.json", required=False)
    special = {name: text for name in _SPECIAL_NAMES if (text := _text(settings.get(name))) is not None}
    _mark_special(backend, special)
    own = backend.token_to_id(special["eos_token"]) if "eos_token" in special else None
    special_ids = SpecialIds(
        eos_token_ids=eos_token_ids if own is None else eos_token_ids | {own},
        around=_around(backend, settings, special),
    )
    source, tool_source = _chat_templates(folder, settings)
    template = ChatTemplate(source, special, tool_source=tool_source)
    return TextTokenizer(backend, _spelling(folder, backend), special_ids, template, vocab_size=vocab_size)


def _backend(folder: Path) -> tokenizers.Tokenizer:
    path = folder / TOKENIZER_FILE
    if not path.exists():
        raise ModelError(
            f"{path}: the file is missing; fetch it, or write it with transformers: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    with damaged_tokenizer(path):
        backend = tokenizers.Tokenizer.from_file(str(path))
    backend.no_truncation()
    backend.no_padding()
    return backend


def _text(value: object) -> str | None:
    """A token as text; the files hold either the text or an object with ``content``."""
    if isinstance(value, dict):
        value = cast(dict[str, object], value).get("content")
    return value if isinstance(value, str) else None


def _mark_special(backend: tokenizers.Tokenizer, special: Mapping[str, str]) -> None:
    """Tokens with a role are special even if ``tokenizer.json`` forgot to say so, as in transformers."""
    marked = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    forgotten = {
        text for text in special.values() if text not in marked and backend.token_to_id(text) is not None
    }
    add_tokens(backend, [AddedToken(text, normalized=False, special=True) for text in sorted(forgotten)])


def _around(
    backend: tokenizers.Tokenizer, settings: Mapping[str, object], special: Mapping[str, str]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """BOS and EOS by the flags of ``tokenizer_config.json``; without flags the post-processor's business."""
    if "add_bos_token" not in settings and "add_eos_token" not in settings:
        return None

    def ids(flag: str, name: str) -> tuple[int, ...]:
        wanted = settings.get(flag) is True and name in special
        token_id = backend.token_to_id(special[name]) if wanted else None
        return () if token_id is None else (token_id,)

    return ids("add_bos_token", "bos_token"), ids("add_eos_token", "eos_token")


def _chat_templates(folder: Path, settings: Mapping[str, object]) -> tuple[str | None, str | None]:
    """The template, and another one for tools where the model has two.

    ``chat_template.jinja`` goes first, then the setting: one template, or those named default and tool_use.
    """
    try:
        return (folder / "chat_template.jinja").read_text(encoding="utf-8"), None
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{folder / 'chat_template.jinja'}: cannot be read ({error}); fetch it again"
        ) from error
    stored = settings.get("chat_template")
    if isinstance(stored, list):
        entries = [
            cast(dict[str, object], entry) for entry in cast(list[object], stored) if isinstance(entry, dict)
        ]
        named = {entry.get("name"): entry.get("template") for entry in entries}
        return _source(named.get("default")), _source(named.get("tool_use"))
    return _source(stored), None


def _source(stored: object) -> str | None:
    return stored if isinstance(stored, str) else None


def _spelling(folder: Path, backend: tokenizers.Tokenizer) -> Spelling:
    """Read off the decoder how the vocabulary spells bytes; ModelError for a kind that we cannot stream."""
    kinds = _decoder_kinds(backend)
    if "ByteLevel" in kinds:
        return Spelling.BYTE_LEVEL
    if kinds & {"ByteFallback", "Metaspace"}:
        return Spelling.SENTENCEPIECE
    raise ModelError(
        f"{folder / TOKENIZER_FILE}: the decoder {sorted(kinds)} is not supported; "
        "use a model with a byte-level or SentencePiece BPE tokenizer"
    )


def _decoder_kinds(backend: tokenizers.Tokenizer) -> set[str]:
    """Names of the decoder's steps, from the JSON that the library pickles it to."""
    if backend.decoder is None:
        return set()
    state = cast(dict[str, object], json.loads(backend.decoder.__getstate__()))
    steps = cast(list[dict[str, object]], state.get("decoders", [state]))
    return {str(step["type"]) for step in steps}
