"""The tokenizer that a GGUF's metadata describes, rebuilt with the ``tokenizers`` library.

A GGUF holds the vocabulary, the merges or scores, and the *name* of the rule that splits text before merging
(``tokenizer.ggml.pre``). The rules are those of the models' own ``tokenizer.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar, cast

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from headway.engine.chat_template import ChatTemplate
from headway.engine.gguf_config import CONTROL_TOKEN, eos_token_ids
from headway.engine.gguf_file import GgufFile
from headway.engine.model_fields import ModelFields
from headway.engine.tokenizer import (
    SPACE_MARK,
    SpecialIds,
    Spelling,
    TextTokenizer,
    add_tokens,
    damaged_tokenizer,
)

_USER_DEFINED_TOKEN: Final = 4
_PREFIX: Final = "tokenizer.ggml"
_SPECIAL_NAMES: Final[Mapping[str, str]] = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}

_CONTRACTIONS: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_AFTER_NUMBERS: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3_SPLIT: Final = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _AFTER_NUMBERS
_QWEN2_SPLIT: Final = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _AFTER_NUMBERS
_TEKKEN_SPLIT: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _gpt2(backend: tokenizers.Tokenizer) -> None:
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)


def _smollm(backend: tokenizers.Tokenizer) -> None:
    """Every digit alone, then GPT-2's rule. (transformers' GGUF loader leaves the digits out.)"""
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )


def _split_by(pattern: str) -> Callable[[tokenizers.Tokenizer], None]:
    def apply(backend: tokenizers.Tokenizer) -> None:
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )

    return apply


def _qwen2(backend: tokenizers.Tokenizer) -> None:
    """Qwen2 composes characters first, as its ``tokenizer.json`` does."""
    backend.normalizer = normalizers.NFC()
    _split_by(_QWEN2_SPLIT)(backend)


_PRE_TOKENIZERS: Final[Mapping[str, Callable[[tokenizers.Tokenizer], None]]] = {
    "default": _gpt2,
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": _split_by(_LLAMA3_SPLIT),
    "llama3": _split_by(_LLAMA3_SPLIT),
    "llama-v3": _split_by(_LLAMA3_SPLIT),
    "smaug-bpe": _split_by(_LLAMA3_SPLIT),
    "qwen2": _qwen2,
    "deepseek-r1-qwen": _qwen2,
    "tekken": _split_by(_TEKKEN_SPLIT),
}
# Vocabularies in which some words cannot be reached by merges; such a word is taken whole, as their own
# tokenizer.json and llama.cpp do. They also start every text with BOS unless the file says otherwise.
_WHOLE_WORDS_FIRST: Final = frozenset({"llama-bpe", "llama3", "llama-v3", "tekken"})

_Item = TypeVar("_Item", str, int, float)


def tokenizer_from_gguf(file: GgufFile) -> TextTokenizer:
    """Build the tokenizer; ModelError when its kind is unknown or its tables do not fit together."""
    vocabulary = _Vocabulary(file)
    model = vocabulary.fields.text(f"{_PREFIX}.model")
    with damaged_tokenizer(file.path):
        if model == "gpt2":
            backend, spelling = _byte_level(vocabulary), Spelling.BYTE_LEVEL
        elif model == "llama":
            backend, spelling = _sentencepiece(vocabulary), Spelling.SENTENCEPIECE
        else:
            raise vocabulary.fields.unsupported(
                f"the tokenizer {model!r}", "use a model with a gpt2 or llama tokenizer"
            )
        add_tokens(backend, vocabulary.added(CONTROL_TOKEN, special=True))
        add_tokens(backend, vocabulary.added(_USER_DEFINED_TOKEN, special=False))
    special_ids = SpecialIds(eos_token_ids(file), vocabulary.around(model))
    embedding = file.tensors.get("token_embd.weight")
    return TextTokenizer(
        backend,
        spelling,
        special_ids,
        vocabulary.chat_template(),
        vocab_size=len(vocabulary.tokens) if embedding is None else embedding.shape[0],
    )


class _Vocabulary:
    """The tokenizer's part of the metadata, checked as it is read."""

    def __init__(self, file: GgufFile) -> None:
        self.fields = ModelFields(str(file.path), file.metadata)
        self.tokens = self.table("tokens", str)
        self.types = self.table("token_type", int)
        if not self.tokens or (self.types and len(self.types) != len(self.tokens)):
            raise self.fields.wrong(f"{_PREFIX}.tokens", "a vocabulary with a type for each token")
        self.ids = {token: index for index, token in enumerate(self.tokens)}

    def table(self, name: str, kind: type[_Item]) -> Sequence[_Item]:
        """A list of the metadata, empty if absent."""
        values = self.fields.value(f"{_PREFIX}.{name}")
        if values is None:
            return ()
        if not isinstance(values, tuple) or (values and not isinstance(values[0], kind)):
            raise self.fields.wrong(f"{_PREFIX}.{name}", f"a list of {kind.__name__}")
        return cast(Sequence[_Item], values)

    @property
    def pre(self) -> str:
        return self.fields.text(f"{_PREFIX}.pre", "default")

    def merges(self) -> list[tuple[str, str]]:
        pairs = [tuple(merge.split(" ")) for merge in self.table("merges", str)]
        if any(len(pair) != 2 for pair in pairs):
            raise self.fields.wrong(f"{_PREFIX}.merges", "pairs of tokens")
        return cast(list[tuple[str, str]], pairs)

    def added(self, kind: int, *, special: bool) -> list[AddedToken]:
        """Tokens of one type, matched whole in any text."""
        pairs = zip(self.tokens, self.types, strict=False)
        return [
            AddedToken(token, normalized=False, special=special)
            for token, its in pairs
            if its == kind and token
        ]

    def special_id(self, key: str) -> int | None:
        """The id stored under ``key``, None if absent."""
        full = f"{_PREFIX}.{key}"
        if full not in self.fields:
            return None
        token_id = self.fields.integer(full, minimum=0)
        if token_id >= len(self.tokens):
            raise self.fields.wrong(full, f"an id below {len(self.tokens)}")
        return token_id

    def around(self, model: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids before and after a text with special tokens; defaults for a silent file are llama.cpp's."""
        bos, eos = self.special_id("bos_token_id"), self.special_id("eos_token_id")
        adds_bos = model == "llama" or self.pre in _WHOLE_WORDS_FIRST
        if not self.fields.flag(f"{_PREFIX}.add_bos_token", default=adds_bos):
            bos = None
        if not self.fields.flag(f"{_PREFIX}.add_eos_token", default=False):
            eos = None
        return (() if bos is None else (bos,)), (() if eos is None else (eos,))

    def chat_template(self) -> ChatTemplate:
        key = "tokenizer.chat_template"
        ids = {name: self.special_id(stored) for name, stored in _SPECIAL_NAMES.items()}
        special = {name: self.tokens[token_id] for name, token_id in ids.items() if token_id is not None}
        return ChatTemplate(self.fields.text(key) if key in self.fields else None, special)


def _byte_level(vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    prepare = _PRE_TOKENIZERS.get(vocabulary.pre)
    if prepare is None:
        raise vocabulary.fields.unsupported(
            f"the pre-tokenizer {vocabulary.pre!r}", f"use a model with one of {sorted(_PRE_TOKENIZERS)}"
        )
    whole_words = vocabulary.pre in _WHOLE_WORDS_FIRST
    backend = tokenizers.Tokenizer(models.BPE(vocabulary.ids, vocabulary.merges(), ignore_merges=whole_words))
    prepare(backend)
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    """As transformers' LlamaTokenizer: ▁ for spaces, one before the text, unknown characters as bytes."""
    merges = vocabulary.merges() or merges_from_scores(vocabulary.ids, vocabulary.table("scores", float))
    unknown = vocabulary.special_id("unknown_token_id")
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocabulary.ids,
            merges,
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefixed = vocabulary.fields.flag(f"{_PREFIX}.add_space_prefix", default=True)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=SPACE_MARK, prepend_scheme="first" if prefixed else "never", split=False
    )
    steps = [decoders.Replace(SPACE_MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(content=" ", left=1)] if prefixed else steps)
    return backend


def merges_from_scores(ids: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """The merges that a scored vocabulary implies, best first.

    SentencePiece merges the neighbours whose union scores best; a merge list in order of the union's score
    does the same.
    """
    if len(scores) < len(ids):
        raise ValueError("fewer scores than tokens")
    candidates: list[tuple[float, int, int, str, str]] = []
    for token, token_id in ids.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                candidates.append((scores[token_id], len(left), len(right), left, right))
    candidates.sort(key=lambda item: item[:3], reverse=True)
    return [(left, right) for *_, left, right in candidates]
