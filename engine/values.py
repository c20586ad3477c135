"""Values that cross the engine's borders: what is asked, what a step is, what comes out.

Standard library only, all frozen. A ``StepPlan`` can be logged, replayed, compared in a test or thrown away.
What a step makes or looks up once per request is a named tuple: that takes a third of the time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen; ranges were checked where the request entered.

    ``top_k`` 0 keeps all tokens. ``logprobs`` None: none; k: the chosen token's and the k most likely ones.
    Penalties follow the usual definitions: repetition (CTRL, arXiv 1909.05858) over prompt and output,
    presence and frequency (OpenAI) over output only.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    """Draws are keyed by (seed, position), so any worker continues the same draw."""
    stop_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    grammar: str | None = None
    """The form that the answer must have, in the grammar library's notation (``grammar_source``). It ends
    where its form does, also before ``min_tokens`` and with ``ignore_eos``. None: any text."""

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken without a draw."""
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True)
class Objective:
    """What a reader should not have to wait longer for: the first token, and each one after it."""

    ttft_seconds: float
    tpot_seconds: float


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """One answer to compute. ``generated_token_ids`` are kept from an earlier owner and continued."""

    request_id: str
    epoch: int
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    """Length limit of the answer in tokens, those in ``generated_token_ids`` included."""
    generated_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    tenant: str = "default"
    priority: int = 1
    """Class band: 0 interactive, 1 standard, 2 batch. Lower goes first."""
    arrival_seconds: float = 0.0
    """When the job was accepted, on the engine's clock (may lie before the engine's start)."""
    deadline_seconds: float | None = None
    """On the engine's clock."""
    is_demotable: bool = False
    """When the deadline cannot be met, or has passed: go on at best effort without one."""
    objective: Objective | None = None
    """None: that of its class (``StepLimits.objectives``)."""
    fork_of: str | None = None
    """Id of a request with the same prompt and tenant: if it lives and runs when this one could start, its
    prompt is shared instead of computed again (several choices of one answer)."""


class RequestKey(NamedTuple):
    """Identity inside the engine: what arrives for an older epoch is dropped."""

    request_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """Told to the runner once, in the first plan that holds the request (again after a preemption)."""

    key: RequestKey
    prompt_token_ids: tuple[int, ...]
    generated_token_ids: tuple[int, ...]
    sampling: Sampling


PLACEHOLDER: Final = -1
"""In a plan ahead, alone in its chunk: the token that the step before samples for the request."""


class Chunk(NamedTuple):
    """Compute the KV of ``token_ids`` at positions ``[start, start + len(token_ids))``.

    Slot of position p: block ``block_table[p // block_size]``, offset ``p % block_size``. The table holds at
    least the blocks up to the chunk's end; the tuple object is replaced only when it grows, so ``is`` tells a
    change. ``samples``: the chunk reaches the last known token, so its logits choose the next one.

    The last ``draft_tokens`` of ``token_ids`` are guesses behind the last known token. A guess is right if it
    is the token that would be chosen in its place without it; the runner samples behind the last known token
    and behind each right guess, up to the first wrong one. KV of wrong guesses is left to be overwritten.
    """

    key: RequestKey
    start: int
    token_ids: tuple[int, ...]
    block_table: tuple[int, ...]
    samples: bool
    draft_tokens: int = 0


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy one whole block. The plan says what the numbers count: device blocks or host slots."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One iteration.

    Order of effects, all of it after the plans before: forget ``released``, learn ``admitted``, ``swaps_out``
    (device block to host slot), ``copies`` (device to device), ``swaps_in`` (host slot to device block), run
    ``chunks``. Swaps may still be under way when the result comes (``StepResult.copied_step``), but a plan
    without chunks waits for all of them. A plan ahead (with placeholders) comes just after the plan that it
    was made behind, or never.
    """

    step: int
    chunks: tuple[Chunk, ...]
    admitted: tuple[Admitted, ...] = ()
    released: tuple[RequestKey, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    swaps_out: tuple[BlockCopy, ...] = ()
    swaps_in: tuple[BlockCopy, ...] = ()
    awaits_copies: bool = False
    """Somebody may wait for swaps or earlier plans: with nothing else to do, the runner waits for them."""

    @property
    def needs_runner(self) -> bool:
        """Whether there is anything to execute; a plan without only carries last outputs to ``apply``."""
        return bool(self.chunks) or self.has_copies or self.awaits_copies

    @property
    def has_copies(self) -> bool:
        """Whether any block is copied; such a plan has to be executed even without chunks."""
        return bool(self.copies or self.swaps_out or self.swaps_in)

    @property
    def new_tokens(self) -> int:
        """Tokens whose KV this step computes, guesses included."""
        return sum(len(chunk.token_ids) for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Natural-log probabilities after penalties, bias and grammar, before temperature and truncation.

    ``top`` holds (token id, log-probability), best first, and no token that could not be chosen.
    """

    chosen: float
    top: tuple[tuple[int, float], ...] = ()


class Sampled(NamedTuple):
    """The token chosen for one request in one step."""

    key: RequestKey
    token_id: int
    logprobs: Logprobs | None = None


@dataclass(frozen=True, slots=True)
class CopyTime:
    """How long the swaps of one plan and one direction took."""

    step: int
    """The plan's."""
    is_out: bool
    """From the device to the host."""
    blocks: int
    seconds: float
    is_beside: bool = False
    """They ran beside the computation: ``elapsed_seconds`` does not hold them."""


class ComputeTimes(NamedTuple):
    """Seconds of one step inside the runner. ``products``, ``head`` and ``attention`` are parts of ``model``,
    the forward pass, and 0 where the runner does not tell them apart. On a GPU the host waits while it
    samples, so most of the pass counts as ``sampling``."""

    model: float
    sampling: float
    products: float = 0.0
    head: float = 0.0
    attention: float = 0.0


@dataclass(frozen=True, slots=True)
class StepResult:
    """What the runner did."""

    step: int
    sampled: tuple[Sampled, ...]
    """One entry per sampling chunk and right guess in it, in the plan's order."""
    elapsed_seconds: float
    copied_step: int | None = None
    """Swaps of plans up to this step are complete; None: this step's too."""
    copy_times: tuple[CopyTime, ...] = ()
    """Of swaps found complete since the result before, where the runner times them."""
    times: ComputeTimes | None = None
    """Where ``elapsed_seconds`` went, where the runner knows."""


class Emission(NamedTuple):
    """Committed by ``apply``: a token by its place in the answer (0-based), and the end if it was the last.

    ``token_id`` None: the request ended without a new token (cancel, deadline, error).
    """

    key: RequestKey
    token_index: int
    token_id: int | None
    logprobs: Logprobs | None = None
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class TextLogprobs:
    """Logprobs with token texts, as an API shows them: (token id, its bytes, log-probability)."""

    chosen: tuple[int, bytes, float]
    top: tuple[tuple[int, bytes, float], ...] = ()


class Output(NamedTuple):
    """What a step brings to one request, ready to publish.

    ``text`` is what may be shown now: never half a character, never a part of a possible stop string. It can
    be empty while ``token_ids`` is not. On the last output it also holds what the end releases.
    """

    key: RequestKey
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TextLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    error_message: str | None = None
    tail: str = ""
    """The end of ``text`` that was held back until now and is released by the end itself, not by a token."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The engine's state between two steps, for metrics and for deciding how much to claim."""

    running: int
    waiting: int
    held: int
    kv_blocks_total: int
    kv_blocks_used: int
    steps: int
    last_step_seconds: float
    extra: dict[str, float] = field(default_factory=dict[str, float])
