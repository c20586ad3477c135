"""A job's prompt in tokens, and what the chat template has already written of the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from headway.engine.interfaces import Tokenizer
from headway.queueing.answer_formats import THOUGHT_MARKS
from headway.queueing.messages import Job

_TAIL_TOKENS: Final = 16
"""Enough for the mark that opens thoughts, also where it is spelled out, and the space around it."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """``opening``: the mark that opens thoughts, where the template itself ends with it.

    The answer's text begins with it, so that every reader sees where the thoughts begin.
    """

    token_ids: tuple[int, ...]
    opening: str = ""


def prompt_of(job: Job, tokenizer: Tokenizer) -> Prompt:
    """Tokenize a job's input; raises RequestError, such as ChatTemplateError."""
    if job.messages is None:
        if job.prompt is not None:
            return Prompt(tokenizer.encode(job.prompt, add_special_tokens=True))
        return Prompt(job.prompt_token_ids or ())
    names: dict[str, Any] = dict(job.chat_template_kwargs)
    # A form binds the first token: there is no room for thoughts, so templates that can leave them out. Where
    # it binds later (strict calls in auto), the job says neither: as the template has it.
    is_bound = job.constraint is not None and names.setdefault("enable_thinking", False) is not None
    messages = [message.model_dump(mode="json", exclude_none=True) for message in job.messages]
    token_ids = tokenizer.render_chat(messages, job.tools, names)
    return Prompt(token_ids, "" if is_bound else _opening(token_ids, tokenizer))


def _opening(token_ids: tuple[int, ...], tokenizer: Tokenizer) -> str:
    raw = b"".join(tokenizer.token_bytes(token_id) for token_id in token_ids[-_TAIL_TOKENS:])
    tail = raw.decode("utf-8", "replace").rstrip()
    return next((opening for opening, _ in THOUGHT_MARKS.values() if tail.endswith(opening)), "")
