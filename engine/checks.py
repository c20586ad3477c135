"""What a request must be before it enters: what could never run is refused here, with the numbers."""

from __future__ import annotations

from collections.abc import Collection

from headway.engine.errors import ContextLengthError, InvalidTokenError, RequestError, UnsupportedError
from headway.engine.interfaces import GrammarChecks, Runner
from headway.engine.values import RequestSpec


def check_request(spec: RequestSpec, runner: Runner) -> None:
    """Raise RequestError (ContextLengthError, InvalidTokenError, GrammarError) for what this runner can never
    serve.

    A grammar that was not seen before is compiled for it, which may take seconds.
    """
    _check_counts(spec)
    _check_length(spec, runner)
    _check_tokens("prompt_token_ids", spec.prompt_token_ids, runner.vocab_size)
    _check_tokens("generated_token_ids", spec.generated_token_ids, runner.vocab_size)
    _check_tokens("sampling.stop_token_ids", spec.sampling.stop_token_ids, runner.vocab_size)
    _check_tokens("sampling.logit_bias", [token for token, _ in spec.sampling.logit_bias], runner.vocab_size)
    if spec.sampling.grammar is not None:
        _check_grammar(spec.sampling.grammar, runner)


def _check_grammar(source: str, runner: Runner) -> None:
    grammars: GrammarChecks | None = getattr(runner, "grammars", None)
    if grammars is None:
        raise UnsupportedError(
            "this model's runner cannot hold an answer to a form: leave the constraint out"
        )
    grammars.check(source)


def _check_counts(spec: RequestSpec) -> None:
    if not spec.prompt_token_ids:
        raise RequestError("the prompt has no tokens: send at least one")
    if spec.max_tokens < 1:
        raise RequestError(
            f"max_tokens is {spec.max_tokens}: ask for at least 1", field="sampling.max_tokens"
        )
    if spec.sampling.min_tokens > spec.max_tokens:
        raise RequestError(
            f"min_tokens ({spec.sampling.min_tokens}) is above max_tokens ({spec.max_tokens}): lower it",
            field="sampling.min_tokens",
        )
    if not all(spec.stop_strings):
        raise RequestError("a stop string is empty: leave it out", field="sampling.stop")


def _check_length(spec: RequestSpec, runner: Runner) -> None:
    prompt = len(spec.prompt_token_ids)
    total = prompt + spec.max_tokens
    asked = f"the prompt has {prompt} tokens and max_tokens is {spec.max_tokens}, together {total}"
    context = runner.max_model_len
    if total > context:
        raise ContextLengthError(
            f"{asked}, but the model's context holds {context}: {_advice(prompt, context)}"
        )
    blocks = -(-total // runner.block_size)
    if blocks > runner.block_count:
        room = runner.block_count * runner.block_size
        raise ContextLengthError(
            f"{asked}, which takes {blocks} KV blocks, but this worker has {runner.block_count} "
            f"of {runner.block_size} tokens: {_advice(prompt, room)}, or give the worker more KV memory"
        )


def _advice(prompt: int, room: int) -> str:
    if prompt < room:
        return f"lower max_tokens to {room - prompt} or shorten the prompt"
    return f"shorten the prompt to at most {room - 1} tokens"


def _check_tokens(field: str, token_ids: Collection[int], vocab_size: int) -> None:
    # Prompts are long and mostly right: bounds are checked at C speed, the place is searched only on error.
    if not token_ids or (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        return
    place, token_id = next((p, t) for p, t in enumerate(token_ids) if not 0 <= t < vocab_size)
    raise InvalidTokenError(
        f"{field} holds {token_id} at place {place}; this model's token ids are 0 to {vocab_size - 1}",
        field=field,
    )
