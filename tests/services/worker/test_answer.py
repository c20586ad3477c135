"""An answer between engine and queue: whatever the order of steps, writes and failures, it is exact."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.queueing.events import START, Cursor, EndReason, TokenEvent, TokenLogprob
from headway.services.answer import Answer

MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(0, 2)),
        st.just(("write", 0)),  # sealed, written, confirmed
        st.just(("lost reply", 0)),  # sealed and written, but the writer does not know
        st.just(("away", 0)),  # sealed, not written
    ),
    max_size=60,
)


class Stream:
    """The queue's rule: an entry whose cursor is not beyond the last one is ignored."""

    def __init__(self) -> None:
        self.entries: list[TokenEvent] = []

    def write(self, entries: tuple[TokenEvent, ...]) -> None:
        for entry in entries:
            if entry.cursor > (self.entries[-1].cursor if self.entries else START):
                self.entries.append(entry)


@given(moves=MOVES, tail=st.booleans())
def test_what_reaches_the_stream_is_every_token_once_in_order(
    moves: list[tuple[str, int]], tail: bool
) -> None:
    answer, stream = Answer(3), Stream()
    expected: list[list[int]] = [[], [], []]
    for serial, (move, choice) in enumerate(moves):
        if move == "step":
            logprob = TokenLogprob(serial, str(serial), b"", -1.0)
            # Every third token holds its text back, as half a character would.
            text = "" if serial % 3 == 0 else f"{serial},"
            answer.add(choice, text, (serial,), (logprob,))
            expected[choice].append(serial)
        else:
            entries = answer.seal()
            if move != "away":
                stream.write(entries)
            if move == "write":
                answer.confirm(len(entries))
    if tail:
        answer.add(1, "held back", (), (), EndReason.STOP)
    answer.cut(EndReason.CANCELLED)
    stream.write(answer.seal())
    end, result = answer.end("job", 4)

    at = 0
    for entry in stream.entries:
        at += len(entry.token_ids)
        assert entry.cursor == Cursor(at)
        assert [logprob.token_id for logprob in entry.logprobs] == list(entry.token_ids)
    for choice in range(3):
        mine = [entry for entry in stream.entries if entry.choice == choice]
        assert [token for entry in mine for token in entry.token_ids] == expected[choice]
        told = "".join(entry.text for entry in mine) + end.choices[choice].tail
        assert told == result.choices[choice].text
        assert list(result.choices[choice].token_ids) == expected[choice]
    assert end.cursor == Cursor(at, 1)
    assert end.usage.completion_tokens == result.usage.completion_tokens == at
    assert end.reason is EndReason.CANCELLED


@given(moves=MOVES)
def test_a_resumed_answer_knows_what_was_committed(moves: list[tuple[str, int]]) -> None:
    first, stream = Answer(3), Stream()
    for serial, (move, choice) in enumerate(moves):
        if move == "step":
            first.add(choice, f"{serial},", (serial,))
        else:
            stream.write(first.seal())
    second = Answer(3, stream.entries)
    assert not second.has_unwritten
    assert second.resumed_tokens == sum(len(entry.token_ids) for entry in stream.entries)
    for choice in range(3):
        known = [token for e in stream.entries if e.choice == choice for token in e.token_ids]
        assert second.token_ids(choice) == tuple(known)
    second.add(0, "next", (999,))
    (entry,) = second.seal()
    assert entry.cursor.tokens == second.resumed_tokens + 1


def test_a_job_ends_for_its_worst_choice() -> None:
    answer = Answer(3)
    answer.add(0, "a", (1,), (), EndReason.STOP)
    answer.add(1, "b", (2,), (), EndReason.LENGTH)
    answer.add(2, "c", (3,), (), EndReason.DEADLINE)
    assert answer.is_ended
    answer.seal()
    end, _ = answer.end("job", 1)
    assert end.reason is EndReason.DEADLINE
    assert [choice.finish_reason for choice in end.choices] == ["stop", "length", "deadline"]


@given(moves=MOVES, resumed=st.booleans())
def test_an_opening_comes_once_before_the_first_token_also_after_a_resume(
    moves: list[tuple[str, int]], resumed: bool
) -> None:
    answer, stream = Answer(2, (), "<think>"), Stream()
    for serial, (move, choice) in enumerate(moves):
        if move == "step":
            answer.add(min(choice, 1), f"{serial} ", (serial,))
            continue
        entries = answer.seal()
        if move in {"write", "lost reply"}:
            stream.write(entries)
        if move == "write":
            answer.confirm(len(entries))
    if resumed:  # what was not written comes again from the next owner
        answer = Answer(2, stream.entries, "<think>")
    for choice in range(2):
        answer.add(choice, "end", (1000,), (), EndReason.STOP)
    stream.write(answer.seal())
    for choice in range(2):
        text = "".join(entry.text for entry in stream.entries if entry.choice == choice)
        assert text.startswith("<think>")
        assert text.count("<think>") == 1
        _, result = answer.end("j", 1)
        assert result.choices[choice].text == text
