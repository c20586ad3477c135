"""One request's answer as its reader sees it: emissions in, outputs out."""

from __future__ import annotations

from headway.engine.detokenizer import Detokenizer
from headway.engine.interfaces import Tokenizer
from headway.engine.request import end_by_token
from headway.engine.values import Emission, FinishReason, Logprobs, Output, RequestSpec, TextLogprobs


class Transcript:
    """Text state of one live request.

    Tokens of an earlier owner are replayed first: what it has shown is not shown again, what it held back is
    still held back.
    """

    def __init__(self, spec: RequestSpec, tokenizer: Tokenizer, eos_token_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer(
            tokenizer.token_bytes, spec.stop_strings, exempt_tokens=spec.sampling.min_tokens
        )
        self.error_message: str | None = None
        """Set before the end of a request that fails."""
        for index, token_id in enumerate(spec.generated_token_ids):
            # An end token is no text; nothing can follow it.
            if end_by_token(spec, eos_token_ids, index, token_id) is FinishReason.STOP:
                break
            self._detokenizer.push(token_id)

    @property
    def is_stopped(self) -> bool:
        """Whether a stop string is complete."""
        return self._detokenizer.is_stopped

    def read(self, emission: Emission) -> Output:
        """What the emission brings; a completed stop string makes it the last output."""
        key, _, token_id, logprobs, reason = emission
        shown = ""
        # None first: to look up a member of an enum is a call in Python 3.11, and most tokens end nothing.
        if token_id is not None and (reason is None or reason is not FinishReason.STOP):
            shown = self._detokenizer.push(token_id)
        token_ids = () if token_id is None else (token_id,)
        texts = () if logprobs is None else self._text_logprobs(token_id, logprobs)
        if reason is None and not self._detokenizer.is_stopped:
            return Output(key, shown, token_ids, texts)
        if self.is_stopped and reason in (None, FinishReason.LENGTH):
            reason = FinishReason.STOP
        tail = self._detokenizer.finish()
        return Output(
            key=key,
            text=shown + tail,
            token_ids=token_ids,
            logprobs=texts,
            finish_reason=reason,
            error_message=self.error_message if reason is FinishReason.ERROR else None,
            tail=tail,
        )

    def _text_logprobs(self, token_id: int | None, logprobs: Logprobs) -> tuple[TextLogprobs, ...]:
        if token_id is None:
            return ()
        top = tuple((other, self._tokenizer.token_bytes(other), value) for other, value in logprobs.top)
        return (TextLogprobs((token_id, self._tokenizer.token_bytes(token_id), logprobs.chosen), top),)
