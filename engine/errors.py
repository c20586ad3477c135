"""What the engine refuses, and what can go wrong inside it.

EngineError
├── RequestError            one request is at fault; the engine lives on
│   ├── ContextLengthError  prompt + answer can never fit the model's context or the KV pool
│   ├── InvalidTokenError   a token id outside the vocabulary
│   ├── DeadlineError       it cannot end before its deadline, by prediction
│   ├── ChatTemplateError   the model has no chat template, or it refuses these messages
│   ├── GrammarError        no answer can be held to the form that was asked for
│   └── UnsupportedError    a feature that this model or runner does not have
├── EngineFullError         no room to wait here now; the request itself is fine
├── ModelError              the model cannot be loaded: missing files, unknown architecture, damaged weights
├── DeviceLostError         a launch has broken the device for this process; never leaves the loading
├── RankLostError           another process of the model's group is gone; nothing can be computed here again
├── ResultNeededError       planning has to wait for the step under way; never leaves the scheduler
└── InvariantError          our own books do not balance; a bug, never the caller's fault
"""


class EngineError(Exception):
    """Base of all errors that the engine raises on purpose."""


class RequestError(EngineError):
    """A request that cannot run as asked. ``code`` is stable, the message says what to change.

    ``field``: what is at fault in the job contract's words, where the engine knows it.
    """

    code = "invalid_request"

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ContextLengthError(RequestError):
    """The prompt and the answer asked for can never fit."""

    code = "context_length_exceeded"


class InvalidTokenError(RequestError):
    """A token id that the model's vocabulary does not hold."""

    code = "invalid_token_id"


class DeadlineError(RequestError):
    """By prediction the request cannot end before its deadline."""

    code = "deadline_unreachable"


class ChatTemplateError(RequestError):
    """The model has no chat template, or its template refuses these messages."""

    code = "chat_template_error"


class GrammarError(RequestError):
    """The form that an answer must have is wrong, too much to follow, or allows no text at all."""

    code = "invalid_grammar"


class UnsupportedError(RequestError):
    """A feature that this model or runner does not have."""

    code = "unsupported"


class EngineFullError(EngineError):
    """As many requests wait as may wait; give the request back to the queue and try later or elsewhere."""


class ModelError(EngineError):
    """The model cannot be loaded; the message says which file and what to do."""


class DeviceLostError(EngineError):
    """A launch has left the device so that nothing can be launched by this process any more."""


class RankLostError(EngineError):
    """Another rank of a model that several processes compute is gone, or computes something else."""


class ResultNeededError(EngineError):
    """What a plan ahead has to decide depends on the result of the step under way."""


class InvariantError(EngineError):
    """The scheduler's or the ledger's own books do not balance."""
