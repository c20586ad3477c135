"""Ids and bytes of tokens: what a token adds to the text is exactly known."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from headway.engine.checkpoint import open_checkpoint
from headway.engine.errors import InvalidTokenError, ModelError, RequestError
from headway.engine.hf_tokenizer import tokenizer_from_folder
from headway.engine.interfaces import Tokenizer

if TYPE_CHECKING:
    from tests.engine.model_files.conftest import GgufDraft, TrainedVocabulary

CONTROL = 3


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return open_checkpoint(smollm2_path).tokenizer()


@pytest.fixture
def byte_level(draft: GgufDraft, byte_level_vocabulary: TrainedVocabulary) -> GgufDraft:
    """A tiny model with a byte-level vocabulary."""
    draft.fields |= {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": byte_level_vocabulary.tokens,
        "tokenizer.ggml.merges": byte_level_vocabulary.merges,
        "tokenizer.ggml.token_type": byte_level_vocabulary.types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    return draft


@pytest.fixture
def sentencepiece(draft: GgufDraft, sentencepiece_vocabulary: TrainedVocabulary) -> GgufDraft:
    """A tiny model with a SentencePiece vocabulary."""
    draft.fields |= {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": sentencepiece_vocabulary.tokens,
        "tokenizer.ggml.scores": sentencepiece_vocabulary.scores,
        "tokenizer.ggml.token_type": sentencepiece_vocabulary.types,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    return draft


def load(draft: GgufDraft, folder: Path) -> Tokenizer:
    return open_checkpoint(draft.write(folder / "tiny.gguf")).tokenizer()


def joined(tokenizer: Tokenizer, ids: Sequence[int]) -> bytes:
    return b"".join(tokenizer.token_bytes(token_id) for token_id in ids)


# SmolLM2's vocabulary lacks the bytes of a few control characters and of planes above 3.
@given(
    text=st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Co", "Cn"], max_codepoint=0x3FFFF))
)
@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_of_smollm2_tokens_are_the_text(text: str, smollm2: Tokenizer) -> None:
    assume("<" not in text)  # special tokens add no text
    assert joined(smollm2, smollm2.encode(text, add_special_tokens=False)).decode() == text


@given(text=st.text())
@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_of_byte_level_tokens_are_the_text(text: str, byte_level: GgufDraft, tmp_path: Path) -> None:
    assume("<" not in text)
    path = tmp_path / "tiny.gguf"
    tokenizer = open_checkpoint(path if path.exists() else byte_level.write(path)).tokenizer()
    assert joined(tokenizer, tokenizer.encode(text, add_special_tokens=False)).decode() == text


@given(text=st.text())
@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_of_sentencepiece_tokens_are_the_text_after_a_space(
    text: str, sentencepiece: GgufDraft, tmp_path: Path
) -> None:
    assume("▁" not in text and "<" not in text)
    path = tmp_path / "tiny.gguf"
    tokenizer = open_checkpoint(path if path.exists() else sentencepiece.write(path)).tokenizer()
    expected = text if text.startswith(" ") or not text else f" {text}"
    assert joined(tokenizer, tokenizer.encode(text, add_special_tokens=False)).decode() == expected


def test_special_tokens_are_recognised_but_add_no_text(smollm2: Tokenizer) -> None:
    ids = smollm2.encode("<|im_start|>user\nhi<|im_end|>", add_special_tokens=False)
    assert (ids[0], ids[-1]) == (1, 2)
    assert joined(smollm2, ids) == b"user\nhi"
    assert smollm2.token_label(1) == "<|im_start|>"


def test_smollm2_ends_with_its_turn_and_with_its_text(smollm2: Tokenizer) -> None:
    assert smollm2.eos_token_ids == {0, 2}
    assert smollm2.vocab_size == 49152


def test_smollm2_splits_every_digit_as_the_original_tokenizer_does(smollm2: Tokenizer) -> None:
    labels = [
        smollm2.token_label(token_id) for token_id in smollm2.encode("a 12  345", add_special_tokens=False)
    ]
    assert labels == ["a", " ", "1", "2", "  ", "3", "4", "5"]


def test_every_id_has_a_label(smollm2: Tokenizer) -> None:
    labels = [smollm2.token_label(token_id) for token_id in range(smollm2.vocab_size)]
    assert all(label.isascii() or label.isprintable() or label for label in labels)
    half = next(i for i in range(smollm2.vocab_size) if smollm2.token_bytes(i) == b"\xf0\x9f")
    assert labels[half] == "\\xf0\\x9f"


@pytest.mark.parametrize("token_id", [-1, 49152, 10**9])
def test_ids_outside_the_vocabulary_are_refused(token_id: int, smollm2: Tokenizer) -> None:
    with pytest.raises(InvalidTokenError, match="49152"):
        smollm2.token_bytes(token_id)


def test_half_a_character_is_the_requests_fault(smollm2: Tokenizer) -> None:
    with pytest.raises(RequestError, match="surrogate"):
        smollm2.encode("a\ud800", add_special_tokens=True)


def test_user_defined_tokens_stay_whole_and_are_text(byte_level: GgufDraft, tmp_path: Path) -> None:
    tokenizer = load(byte_level, tmp_path)
    ids = tokenizer.encode("a<think>b", add_special_tokens=False)
    assert 3 in ids
    assert joined(tokenizer, ids) == b"a<think>b"


@pytest.mark.parametrize(
    ("flags", "prefix", "suffix"),
    [
        ({}, (), ()),
        ({"add_bos_token": True}, (1,), ()),
        ({"add_eos_token": True}, (), (2,)),
        ({"add_bos_token": True, "add_eos_token": True}, (1,), (2,)),
    ],
)
def test_flags_add_begin_and_end(
    flags: dict[str, bool],
    prefix: tuple[int, ...],
    suffix: tuple[int, ...],
    byte_level: GgufDraft,
    tmp_path: Path,
) -> None:
    byte_level.fields |= {f"tokenizer.ggml.{flag}": value for flag, value in flags.items()}
    tokenizer = load(byte_level, tmp_path)
    plain = tokenizer.encode("text", add_special_tokens=False)
    assert tokenizer.encode("text", add_special_tokens=True) == (*prefix, *plain, *suffix)


def test_a_silent_sentencepiece_file_begins_texts_with_bos(sentencepiece: GgufDraft, tmp_path: Path) -> None:
    tokenizer = load(sentencepiece, tmp_path)
    assert tokenizer.encode("text", add_special_tokens=True)[0] == 1
    assert 1 not in tokenizer.encode("text", add_special_tokens=False)


def test_a_sentencepiece_file_may_leave_out_the_space_before_a_text(
    sentencepiece: GgufDraft, tmp_path: Path
) -> None:
    sentencepiece.fields["tokenizer.ggml.add_space_prefix"] = False
    tokenizer = load(sentencepiece, tmp_path)
    assert joined(tokenizer, tokenizer.encode("text", add_special_tokens=False)) == b"text"


def test_unknown_characters_become_their_bytes(sentencepiece: GgufDraft, tmp_path: Path) -> None:
    tokenizer = load(sentencepiece, tmp_path)
    ids = tokenizer.encode("ꙮ", add_special_tokens=False)
    assert [tokenizer.token_bytes(token_id) for token_id in ids[-3:]] == [b"\xea", b"\x99", b"\xae"]


def test_words_out_of_reach_of_merges_are_taken_whole_by_llama_3(
    byte_level: GgufDraft, byte_level_vocabulary: TrainedVocabulary, tmp_path: Path
) -> None:
    tokens, types = [*byte_level_vocabulary.tokens, "zqxj"], [*byte_level_vocabulary.types, 1]
    byte_level.fields |= {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": types}
    assert len(load(byte_level, tmp_path).encode("zqxj", add_special_tokens=False)) > 1
    byte_level.fields["tokenizer.ggml.pre"] = "llama-bpe"
    tokenizer = load(byte_level, tmp_path)
    assert tokenizer.encode("zqxj", add_special_tokens=False) == (len(tokens) - 1,)
    assert tokenizer.encode("zqxj", add_special_tokens=True) == (1, len(tokens) - 1)


def test_qwen2_composes_characters_first(byte_level: GgufDraft, tmp_path: Path) -> None:
    byte_level.fields["tokenizer.ggml.pre"] = "qwen2"
    tokenizer = load(byte_level, tmp_path)
    composed = tokenizer.encode("é", add_special_tokens=False)
    assert tokenizer.encode("e\u0301", add_special_tokens=False) == composed


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, r"tokenizer 'rwkv'.*gpt2 or llama"),
        ({"tokenizer.ggml.pre": "chameleon"}, r"pre-tokenizer 'chameleon'.*llama-bpe"),
        ({"tokenizer.ggml.merges": ["a b c"]}, "pairs of tokens"),
        ({"tokenizer.ggml.merges": ["zzzz yyyy"]}, "damaged"),
        ({"tokenizer.ggml.merges": ["ÿ ÿ"]}, "damaged"),
        ({"tokenizer.ggml.merges": [1, 2]}, "list of str"),
        ({"tokenizer.ggml.token_type": [1, 2, 3]}, "a type for each token"),
        ({"tokenizer.ggml.bos_token_id": 10**6}, "bos_token_id"),
        ({"tokenizer.ggml.add_bos_token": "yes"}, "true or false"),
    ],
)
def test_damaged_tables_are_refused(
    change: dict[str, object], reason: str, byte_level: GgufDraft, tmp_path: Path
) -> None:
    byte_level.fields |= change
    with pytest.raises(ModelError, match=reason) as caught:
        load(byte_level, tmp_path)
    assert "tiny.gguf" in str(caught.value)


def test_a_sentencepiece_file_without_scores_is_refused(sentencepiece: GgufDraft, tmp_path: Path) -> None:
    del sentencepiece.fields["tokenizer.ggml.scores"]
    with pytest.raises(ModelError, match="fewer scores"):
        load(sentencepiece, tmp_path)


def test_other_end_tokens_of_a_vocabulary_are_found_by_their_text(
    byte_level: GgufDraft, tmp_path: Path
) -> None:
    byte_level.fields["tokenizer.ggml.eot_token_id"] = 7
    checkpoint = open_checkpoint(byte_level.write(tmp_path / "tiny.gguf"))
    assert checkpoint.config.eos_token_ids == {0, 2, 7}
    assert checkpoint.tokenizer().eos_token_ids == {0, 2, 7}
    assert checkpoint.config.bos_token_id == 1


def test_a_folders_tokenizer_obeys_its_settings(tokenizer_folder: Path) -> None:
    tokenizer = tokenizer_from_folder(tokenizer_folder, frozenset(), vocab_size=0)
    assert tokenizer.encode("hi", add_special_tokens=True)[0] == 1
    assert tokenizer.eos_token_ids == {2}
    assert tokenizer.token_bytes(2) == b"", "the end token is special though tokenizer.json does not say so"
    assert tokenizer.token_bytes(3) == b"<think>"


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"model": {"type": "BPE"}}'])
def test_a_damaged_tokenizer_file_is_named(content: str, tokenizer_folder: Path) -> None:
    (tokenizer_folder / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json.*damaged"):
        tokenizer_from_folder(tokenizer_folder, frozenset(), vocab_size=0)


def test_merges_that_make_the_library_panic_are_a_damaged_file(tokenizer_folder: Path) -> None:
    path = tokenizer_folder / "tokenizer.json"
    content = json.loads(path.read_text())
    left, right = content["model"]["merges"][0]
    del content["model"]["vocab"][left + right]
    path.write_text(json.dumps(content))
    with pytest.raises(ModelError, match="damaged"):
        tokenizer_from_folder(tokenizer_folder, frozenset(), vocab_size=0)


def test_a_kind_of_tokenizer_that_cannot_be_streamed_is_refused(tokenizer_folder: Path) -> None:
    path = tokenizer_folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    path.write_text(json.dumps(content))
    with pytest.raises(ModelError, match="WordPiece"):
        tokenizer_from_folder(tokenizer_folder, frozenset(), vocab_size=0)
