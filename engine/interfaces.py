"""The seams of the engine: what runs a plan, and what turns ids into text (who goes first: ``policy.py``).

Real and scripted implementations keep the same promises and pass the same tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from headway.engine.values import StepPlan, StepResult


class Runner(Protocol):
    """Executes plans on some device. Single-threaded: ``execute`` is always called by the same thread."""

    @property
    def block_count(self) -> int:
        """KV blocks in the pool."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens per KV block."""
        ...

    @property
    def host_slots(self) -> int:
        """KV blocks that host memory holds for swapped requests; 0: it cannot swap."""
        ...

    @property
    def block_bytes(self) -> int:
        """Bytes of one KV block over all layers."""
        ...

    @property
    def max_model_len(self) -> int:
        """Most tokens (prompt + answer) of one request, by the model and by the pool."""
        ...

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        ...

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end an answer unless ``ignore_eos``."""
        ...

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step to its end. KV of earlier positions of each request is in its blocks already.

        A plan may come twice, whole or one chunk at a time: writing KV again, copying again before that,
        learning a known key again and forgetting an unknown one change nothing. A plan without chunks also
        waits until every swap is complete. A ``PLACEHOLDER`` stands for what the plan executed just before
        sampled for that request and position.

        Whatever it raises, the engine looks for the chunk at fault; RequestError blames a request even if it
        runs alone, InvariantError is never covered up.
        """
        ...


@runtime_checkable
class LaunchingRunner(Runner, Protocol):
    """A runner whose device works by itself: a plan can be launched before the last one's result is there."""

    def launch(self, plan: StepPlan) -> None:
        """Begin a step behind those under way, two at most. Raises what ``execute`` does: none began then."""
        ...

    def collect(self) -> StepResult:
        """Wait for the step that was launched first."""
        ...


class GrammarChecks(Protocol):
    """``grammars`` of a runner that can hold answers to a form; one without cannot."""

    def check(self, source: str) -> None:
        """Have a grammar ready for steps; GrammarError for one that no answer can be held to. From any
        thread."""
        ...


class Tokenizer(Protocol):
    """Text to ids and back."""

    @property
    def vocab_size(self) -> int:
        """Token ids are below this."""
        ...

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Tokens that end an answer."""
        ...

    def encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """Ids of a text; special tokens written out in it are recognised, as Hugging Face's tokenizers do."""
        ...

    @property
    def chat_template(self) -> str:
        """The text of the model's chat template; empty where it has none."""
        ...

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        names: Mapping[str, object] | None = None,
    ) -> tuple[int, ...]:
        """Apply the model's chat template with the generation prompt; raises RequestError when it refuses.

        Messages and tools as OpenAI's clients write them; ``names`` are further names for the template.
        """
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to the text; empty for special tokens."""
        ...

    def token_label(self, token_id: int) -> str:
        """A printable name of a token, for logprobs (special tokens by their name)."""
        ...
