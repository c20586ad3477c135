"""How tokens are chosen, from a request's fields to the job contract's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from headway.gateway.request_shape import Shape
from headway.gateway.validation import refusal
from headway.queueing.messages import SamplingParams

_SAME_NAME: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "min_tokens",
    "ignore_eos",
    "logit_bias",
    "n",
)


def sampling_params(request: Shape, others: Mapping[str, Any], renamed: Mapping[str, str]) -> SamplingParams:
    """The fields that a request has under the contract's names, and ``others``; what is None is left out.

    ``renamed``: the contract's names to those that the request has for them. Raises ApiError 400.
    """
    fields: dict[str, Any] = {name: getattr(request, name, None) for name in _SAME_NAME} | dict(others)
    if fields["top_k"] == -1:
        fields["top_k"] = 0  # other servers write "all tokens" as -1
    try:
        return SamplingParams.model_validate(
            {name: value for name, value in fields.items() if value is not None}
        )
    except ValidationError as error:
        raise refusal(error, renamed) from None
