"""However an answer is cut into events, its chunks concatenate to the whole answer."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.gateway.openai_answers import ChunkStream, whole_answer
from headway.gateway.openai_logprobs import started_chars
from headway.gateway.openai_styles import ChatStyle, CompletionStyle, Envelope, Style
from headway.queueing.events import (
    ChoiceEnd,
    ChoiceResult,
    Cursor,
    EndEvent,
    EndReason,
    JobResult,
    StreamEvent,
    TokenEvent,
    TokenLogprob,
    Usage,
)

REASONS = st.sampled_from([EndReason.STOP, EndReason.LENGTH])
TEXT = st.text(max_size=5)


@dataclass(frozen=True)
class Answered:
    """One job's events, and the answer kept for it."""

    events: tuple[StreamEvent, ...]
    result: JobResult


@st.composite
def answered(draw: st.DrawFn, choices: int, with_logprobs: bool) -> Answered:
    """Tokens of several choices in any interleaving; ends told on a token entry, at the end, or both."""
    order = draw(st.lists(st.integers(0, choices - 1), max_size=20))
    reasons = [draw(REASONS) for _ in range(choices)]
    tails = [draw(st.sampled_from(["", "", "tail"])) for _ in range(choices)]
    last_of = {choice: position for position, choice in enumerate(order)}
    told_early = [draw(st.booleans()) for _ in range(choices)]
    events: list[TokenEvent] = []
    for position, choice in enumerate(order):
        text = draw(TEXT)
        raw = text.encode()
        is_last = last_of[choice] == position and told_early[choice]
        logprobs = (TokenLogprob(position, text, raw, -0.5),) if with_logprobs else ()
        events.append(
            TokenEvent(
                Cursor(position + 1),
                choice,
                text,
                (position,),
                logprobs,
                reasons[choice] if is_last else None,
            )
        )
    usage = Usage(draw(st.integers(0, 100)), len(order))
    ends = tuple(ChoiceEnd(reason, tail) for reason, tail in zip(reasons, tails, strict=True))
    end = EndEvent(Cursor(len(order), 1), reasons[0], ends, usage)
    result = JobResult("tiny:0:K", reasons[0], tuple(kept(events, i, ends[i]) for i in range(choices)), usage)
    return Answered((*events, end), result)


def kept(events: list[TokenEvent], index: int, end: ChoiceEnd) -> ChoiceResult:
    own = [event for event in events if event.choice == index]
    return ChoiceResult(
        text="".join(event.text for event in own) + end.tail,
        token_ids=tuple(token for event in own for token in event.token_ids),
        finish_reason=end.finish_reason,
        logprobs=tuple(logprob for event in own for logprob in event.logprobs),
    )


@st.composite
def requests(draw: st.DrawFn) -> tuple[Style, Envelope, list[Answered]]:
    style: Style = ChatStyle() if draw(st.booleans()) else CompletionStyle()
    n = draw(st.integers(1, 3))
    with_logprobs = draw(st.booleans())
    is_chat = isinstance(style, ChatStyle)
    prompts = 1 if is_chat else draw(st.integers(1, 3))
    echoed = () if is_chat or with_logprobs or draw(st.booleans()) else tuple("pqr"[:prompts])
    jobs = [draw(answered(n, with_logprobs)) for _ in range(prompts)]
    return style, Envelope("tiny", 1, "f", with_logprobs, n, echoed), jobs


def interleaved(draw: st.DataObject, jobs: list[Answered]) -> list[tuple[int, StreamEvent]]:
    left = [list(job.events) for job in jobs]
    order: list[tuple[int, StreamEvent]] = []
    while any(left):
        prompt = draw.draw(st.sampled_from([index for index, events in enumerate(left) if events]))
        order.append((prompt, left[prompt].pop(0)))
    return order


@settings(max_examples=200, deadline=None)
@given(requests(), st.data())
def test_chunks_concatenate_to_the_whole_answer(
    request: tuple[Style, Envelope, list[Answered]], data: st.DataObject
) -> None:
    style, envelope, jobs = request
    whole = whole_answer(style, envelope, "id", [job.result for job in jobs])
    stream = ChunkStream(style, envelope, "id", includes_usage=True)
    texts: dict[int, str] = {}
    logprobs: dict[int, list[object]] = {}
    reasons: dict[int, list[str]] = {}
    for prompt, event in interleaved(data, jobs):
        for chunk in stream.chunks(prompt, event):
            assert chunk["usage"] is None
            for choice in chunk["choices"]:  # type: ignore[attr-defined]  # JSON
                index = choice["index"]
                text = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
                texts[index] = texts.get(index, "") + text
                logprobs.setdefault(index, []).extend(flat(choice["logprobs"]))
                reasons.setdefault(index, []).extend(filter(None, [choice["finish_reason"]]))
    for choice in whole["choices"]:  # type: ignore[attr-defined]  # JSON
        index = choice["index"]
        assert texts[index] == (choice["message"]["content"] if "message" in choice else choice["text"])
        assert reasons[index] == [choice["finish_reason"]], "each choice ends exactly once"
        assert logprobs[index] == flat(choice["logprobs"])
    assert len(texts) == len(jobs) * envelope.choices_per_prompt
    last = stream.usage_chunk()
    assert last is not None
    assert (last["choices"], last["usage"]) == ([], whole["usage"])


def flat(logprobs: dict[str, list[object]] | None) -> list[object]:
    """Per-token values in order, of either endpoint's logprobs object."""
    if logprobs is None:
        return []
    if "content" in logprobs:
        return logprobs["content"]
    return list(zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["text_offset"], strict=True))


@given(st.text(max_size=20), st.lists(st.integers(0, 80), max_size=5))
def test_offsets_of_bytes_cut_anywhere_add_up_to_characters(text: str, cuts: list[int]) -> None:
    raw = text.encode()
    edges = sorted({0, len(raw), *(min(cut, len(raw)) for cut in cuts)})
    pieces = [raw[start:stop] for start, stop in pairwise(edges)]
    assert sum(started_chars(piece) for piece in pieces) == len(text)
