"""The life of one answer inside the engine: two token counts, the rest is derived."""

from __future__ import annotations

from dataclasses import dataclass, field

from headway.engine.block_table import BlockTable
from headway.engine.drafting import Drafting
from headway.engine.host_pool import Parked
from headway.engine.prefix_cache import HashChain
from headway.engine.values import Admitted, FinishReason, Objective, RequestKey, RequestSpec


@dataclass(slots=True, eq=False)
class Request:
    """Owned and changed by the scheduler alone.

        tokens     [0 ............ prompt)[prompt ............ known)
        KV exists  [0 ........ computed)
        this step           [computed ... computed + grant)

    Every step lets ``computed`` catch up with ``known``. Prefill, chunks, decode, resume (and recompute after
    a preemption) are all this one rule.
    """

    spec: RequestSpec
    serial: int
    """Order of arrival at this engine; the last tie-breaker everywhere."""
    key: RequestKey = field(init=False)
    tokens: list[int] = field(init=False)
    """All known tokens, prompt first. Grows, is never rewritten and never copied as a whole."""
    computed_tokens: int = 0
    table: BlockTable | None = None
    """Its KV blocks while it runs; None while it waits."""
    chain: HashChain | None = None
    """Digests of its full blocks, for the prefix cache."""
    parked: Parked | None = None
    """Its KV in host memory while it is swapped out."""
    parent: Request | None = None
    """Whom it branches off, whenever it starts while that one runs."""
    deferred_steps: int = 0
    """Steps in a row in which it waited for room that was to come by itself."""
    preemptions: int = 0
    """How often it gave way to others."""
    is_held: bool = False
    is_announced: bool = False
    """Whether the runner has been told of it (``Admitted``) in a step that was applied."""
    passes: int = 0
    """How often a request behind it started because this one's blocks did not fit."""
    scheduled_step: int = 0
    rank: tuple[float, ...] = ()
    """Its place in the policy's line, as it was enqueued."""
    debt: float = 0.0
    """Price of its prefill that was promised at the start and is not charged yet."""
    charged_tokens: int = 0
    """Its first so many tokens are paid for, or came from the cache: computing them again is not charged."""
    is_pinned: bool = False
    """No better class may take its place: it is here because it was starved."""
    service_seconds: float = 0.0
    """Predicted time from start to end, as of its arrival."""
    objective: Objective | None = None
    due_seconds: float | None = None
    """When its next token is due by its objective; None: whenever."""
    drafting: Drafting | None = None
    """What is guessed of its next tokens, and how often that was right."""
    skipped_steps: int = 0
    """Steps in a row that left its decode out because it had slack."""

    def __post_init__(self) -> None:
        self.key = RequestKey(self.spec.request_id, self.spec.epoch)
        self.tokens = [*self.spec.prompt_token_ids, *self.spec.generated_token_ids]

    @property
    def known_tokens(self) -> int:
        """Prompt and answer so far."""
        return len(self.tokens)

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.spec.prompt_token_ids)

    @property
    def generated_tokens(self) -> int:
        """Length of the answer so far, tokens of an earlier owner included."""
        return len(self.tokens) - len(self.spec.prompt_token_ids)

    @property
    def pending_tokens(self) -> int:
        """Known tokens without KV. 1: the next step decodes."""
        return len(self.tokens) - self.computed_tokens

    @property
    def longest_tokens(self) -> int:
        """Prompt and the longest answer allowed: what its reservation covers."""
        return len(self.spec.prompt_token_ids) + self.spec.max_tokens

    def aim(self, objective: Objective | None) -> None:
        """Its tokens are due by this from now on; None: whenever."""
        self.objective = objective
        self.due_seconds = None if objective is None else self.spec.arrival_seconds + objective.ttft_seconds

    def pace(self, now: float) -> None:
        """A token came: the next is due one interval after it was due, or after now if it was late.

        So progress made early becomes slack, and a late start does not make all later tokens late.
        """
        due = self.due_seconds
        if due is not None and self.objective is not None:
            self.due_seconds = (due if due > now else now) + self.objective.tpot_seconds  # noqa: FURB136 -- once per token: max() costs three times as much

    def announcement(self) -> Admitted:
        """What the runner has to know of it before its first chunk."""
        return Admitted(
            key=self.key,
            prompt_token_ids=self.spec.prompt_token_ids,
            generated_token_ids=tuple(self.tokens[self.prompt_tokens :]),
            sampling=self.spec.sampling,
        )


def end_by_token(
    spec: RequestSpec, eos_token_ids: frozenset[int], index: int, token_id: int
) -> FinishReason | None:
    """Whether the token at ``index`` of the answer is its last, and why.

    End tokens count from index ``min_tokens`` on (the runner masks them before that); they are part of the
    tokens, not of the text. Where a grammar let one through, nothing else was left.
    """
    sampling = spec.sampling
    if sampling.grammar is not None and token_id in eos_token_ids:
        return FinishReason.STOP
    if index >= sampling.min_tokens:
        if token_id in sampling.stop_token_ids:
            return FinishReason.STOP
        if token_id in eos_token_ids and not sampling.ignore_eos:
            return FinishReason.STOP
    return FinishReason.LENGTH if index + 1 >= spec.max_tokens else None
