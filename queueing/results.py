"""From token events to the answer that is kept, and back."""

from __future__ import annotations

from collections.abc import Iterable

from headway.queueing.events import (
    START,
    ChoiceEnd,
    ChoiceResult,
    Cursor,
    EndEvent,
    EndReason,
    JobError,
    JobResult,
    StreamEvent,
    TokenEvent,
    Usage,
)


def answer_so_far(
    job_id: str, choices: int, events: Iterable[TokenEvent], reason: EndReason, error: JobError | None
) -> JobResult:
    """The answer of a job that ends outside a worker: what was published, each open choice cut off."""
    tokens = tuple(events)
    return JobResult(
        job_id=job_id,
        reason=reason,
        choices=tuple(
            _choice(reason, [event for event in tokens if event.choice == i]) for i in range(choices)
        ),
        usage=Usage(completion_tokens=sum(len(event.token_ids) for event in tokens)),
        error=error,
    )


def _choice(reason: EndReason, events: list[TokenEvent]) -> ChoiceResult:
    own = [event.finish_reason for event in events if event.finish_reason is not None]
    return ChoiceResult(
        text="".join(event.text for event in events),
        token_ids=tuple(token for event in events for token in event.token_ids),
        finish_reason=own[-1] if own else reason,
        logprobs=tuple(logprob for event in events for logprob in event.logprobs),
    )


def end_event(result: JobResult, cursor: Cursor) -> EndEvent:
    """The terminal event that tells of a kept answer; its text has all been published."""
    ends = tuple(ChoiceEnd(choice.finish_reason) for choice in result.choices)
    return EndEvent(cursor, result.reason, ends, result.usage, result.error)


def events_of(result: JobResult) -> tuple[StreamEvent, ...]:
    """A kept answer as a stream from START: one TokenEvent per choice that has tokens, then the EndEvent."""
    events: list[StreamEvent] = []
    at = START
    for index, choice in enumerate(result.choices):
        if choice.token_ids or choice.text:
            at = Cursor(at.tokens + len(choice.token_ids), 0 if choice.token_ids else at.part + 1)
            events.append(
                TokenEvent(at, index, choice.text, choice.token_ids, choice.logprobs, choice.finish_reason)
            )
    events.append(end_event(result, Cursor(at.tokens, at.part + 1)))
    return tuple(events)
