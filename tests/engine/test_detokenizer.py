"""What a reader is shown never depends on how the bytes were cut into tokens."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from headway.engine.detokenizer import Detokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def cut_at_stop(text: str, stops: Sequence[str]) -> str:
    """The plain definition: everything before the stop string that is complete first, the longest of them."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))]
    return text


def show_all(pieces: Sequence[bytes], stops: Sequence[str], exempt: int = 0) -> tuple[list[str], str, bool]:
    detokenizer = Detokenizer(lambda index: pieces[index], stops, exempt_tokens=exempt)
    shown = [detokenizer.push(index) for index in range(len(pieces))]
    tail = detokenizer.finish()
    return shown, tail, detokenizer.is_stopped


# A small alphabet, so that stop strings nearly match all the time and characters are cut anywhere.
letters = st.sampled_from(["a", "a", "b", "b", "é", "😀"])
texts = st.text(letters, max_size=30)
stop_lists = st.lists(st.text(letters, min_size=1, max_size=5), max_size=4)
raw_pieces = st.lists(st.binary(max_size=4), max_size=20)


@st.composite
def cut_texts(draw: st.DrawFn) -> list[bytes]:
    raw = draw(texts).encode()
    cuts = sorted(draw(st.lists(st.integers(0, len(raw)), max_size=12)))
    return [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]


@given(raw_pieces)
def test_any_bytes_cut_anywhere_show_what_decoding_them_at_once_shows(pieces: list[bytes]) -> None:
    shown, tail, _ = show_all(pieces, [])
    assert "".join(shown) + tail == b"".join(pieces).decode("utf-8", "replace")


@given(
    raw_pieces,
    st.lists(st.text(st.sampled_from(["a", REPLACEMENT, "\0"]), min_size=1, max_size=3), max_size=3),
)
def test_any_bytes_with_stop_strings_show_the_text_before_the_first_complete_one(
    pieces: list[bytes], stops: list[str]
) -> None:
    shown, tail, _ = show_all(pieces, stops)
    assert "".join(shown) + tail == cut_at_stop(b"".join(pieces).decode("utf-8", "replace"), stops)


@given(cut_texts(), stop_lists)
@example([b"aaab"], ["aab"])
@example([b"ababac"], ["abac"])
@example([b"a", b"a", b"b", b"a"], ["aba", "ba"])
@example([b"abab", b"c"], ["ababd", "bc"])
def test_stop_strings_cut_anywhere_show_the_text_before_the_first_complete_one(
    pieces: list[bytes], stops: list[str]
) -> None:
    shown, tail, is_stopped = show_all(pieces, stops)
    text = b"".join(pieces).decode()
    assert "".join(shown) + tail == cut_at_stop(text, stops)
    assert is_stopped == any(stop in text for stop in stops)


@given(cut_texts(), stop_lists)
def test_text_that_completes_later_is_never_shown_broken(pieces: list[bytes], stops: list[str]) -> None:
    shown, tail, _ = show_all(pieces, stops)
    assert REPLACEMENT not in "".join(shown) + tail


@given(cut_texts(), stop_lists)
def test_what_is_shown_is_all_that_can_be_known(pieces: list[bytes], stops: list[str]) -> None:
    """After each token: everything but the longest ending that may still become a stop string."""
    shown, _, _ = show_all(pieces, stops)
    for count in range(1, len(pieces) + 1):
        known = codecs.getincrementaldecoder("utf-8")().decode(b"".join(pieces[:count]))
        if any(stop in known for stop in stops):
            break
        endings = [known[place:] for place in range(len(known))]
        held = max((len(e) for e in endings if any(stop.startswith(e) for stop in stops)), default=0)
        assert "".join(shown[:count]) == known[: len(known) - held]


@given(cut_texts(), stop_lists, st.integers(0, 10))
def test_tokens_before_min_tokens_take_no_part_in_stop_strings(
    pieces: list[bytes], stops: list[str], exempt: int
) -> None:
    shown, tail, _ = show_all(pieces, stops, exempt)
    text = b"".join(pieces).decode()
    free = len(codecs.getincrementaldecoder("utf-8")().decode(b"".join(pieces[:exempt])))
    assert "".join(shown) + tail == text[:free] + cut_at_stop(text[free:], stops)


def test_nothing_is_shown_after_a_stop_string() -> None:
    shown, tail, is_stopped = show_all([b"one S", b"TOP two", b" three"], ["STOP"])
    assert (shown, tail, is_stopped) == (["one ", "", ""], "", True)


def test_the_end_releases_a_stop_string_that_never_completed() -> None:
    shown, tail, is_stopped = show_all([b"one S", b"TO"], ["STOP"])
    assert (shown, tail, is_stopped) == (["one ", ""], "STO", False)


def test_the_end_shows_half_a_character_as_a_replacement() -> None:
    assert show_all(["€".encode()[:2]], [])[:2] == ([""], REPLACEMENT)
