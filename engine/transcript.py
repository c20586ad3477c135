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
        reason = emission.finish_reason
        shown = ""
        if emission.token_id is not None and reason is not FinishReason.STOP:
            shown = self._detokenizer.push(emission.token_id)
        if self.is_stopped and reason in (None, FinishReason.LENGTH):
            reason = FinishReason.STOP
        tail = "" if reason is None else self._detokenizer.finish()
        return Output(
            key=emission.key,
            text=shown + tail,
            token_ids=() if emission.token_id is None else (emission.token_id,),
            logprobs=self._text_logprobs(emission.token_id, emission.logprobs),
            finish_reason=reason,
            error_message=self.error_message if reason is FinishReason.ERROR else None,
            tail=tail,
        )

    def _text_logprobs(self, token_id: int | None, logprobs: Logprobs | None) -> tuple[TextLogprobs, ...]:
        if token_id is None or logprobs is None:
            return ()
        top = tuple((other, self._tokenizer.token_bytes(other), value) for other, value in logprobs.top)
        return (TextLogprobs((token_id, self._tokenizer.token_bytes(token_id), logprobs.chosen), top),)
