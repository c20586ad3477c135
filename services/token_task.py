"""Jobs that ask for the tokenizer alone: they never reach the engine, and their answer is a JSON text."""

from __future__ import annotations

import json

from headway.engine.interfaces import Tokenizer
from headway.queueing.messages import Job, TokenTask
from headway.services.prompt import prompt_of


def task_answer(job: Job, task: TokenTask, tokenizer: Tokenizer, max_model_len: int) -> str:
    """The answer's text; raises RequestError, such as InvalidTokenError."""
    if task.kind == "detokenize":
        return json.dumps({"text": _text(job.prompt_token_ids or (), tokenizer)}, ensure_ascii=False)
    if job.prompt is not None:
        token_ids = tokenizer.encode(job.prompt, add_special_tokens=task.add_special_tokens)
    else:
        token_ids = prompt_of(job, tokenizer).token_ids
    texts = [tokenizer.token_label(token_id) for token_id in token_ids] if task.with_texts else None
    answer = {"token_ids": token_ids, "texts": texts, "max_model_len": max_model_len}
    return json.dumps(answer, ensure_ascii=False, separators=(",", ":"))


def _text(token_ids: tuple[int, ...], tokenizer: Tokenizer) -> str:
    """Special tokens by their names, as they would be written in a prompt."""
    raw = [
        tokenizer.token_bytes(token_id) or tokenizer.token_label(token_id).encode() for token_id in token_ids
    ]
    return b"".join(raw).decode("utf-8", "replace")
