"""A model that needs no torch: the promises of a real runner and tokenizer, and a check on everyone else.

The toy model chooses each token by a hash of the whole token history, read back from its simulated KV blocks.
A wrong block table, a missing chunk or a block reused too early gives other tokens than ``reference``.
"""

from __future__ import annotations

import hashlib
import math
import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from headway.engine.chat_turns import in_words, template_turns
from headway.engine.drafts import count_right, drafts_of
from headway.engine.errors import InvalidTokenError, InvariantError
from headway.engine.last_step import LastStep
from headway.engine.values import (
    Admitted,
    Chunk,
    Logprobs,
    RequestKey,
    Sampled,
    Sampling,
    StepPlan,
    StepResult,
)

BOS, EOS, IM_START, IM_END = 256, 257, 258, 259
SPECIAL_TOKENS: Final = {"<|bos|>": BOS, "<|eos|>": EOS, "<|im_start|>": IM_START, "<|im_end|>": IM_END}
_SPECIAL_NAMES: Final = {token_id: name for name, token_id in SPECIAL_TOKENS.items()}
_SPECIAL_PATTERN: Final = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
LETTERS: Final = tuple(b" abcdefghijklmnopqrstuvwxyz")


class ByteTokenizer:
    """One token per UTF-8 byte, and four special tokens. Chats are rendered as ChatML."""

    vocab_size = 256 + len(SPECIAL_TOKENS)
    eos_token_ids = frozenset({EOS, IM_END})

    def encode(self, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
        """Bytes of the text, special tokens written out in it as one token each; BOS in front if asked."""
        ids = [BOS] if add_special_tokens else []
        start = 0
        for match in _SPECIAL_PATTERN.finditer(text):
            ids += text[start : match.start()].encode()
            ids.append(SPECIAL_TOKENS[match.group()])
            start = match.end()
        ids += text[start:].encode()
        return tuple(ids)

    chat_template = ""

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        names: Mapping[str, object] | None = None,
    ) -> tuple[int, ...]:
        """ChatML with the generation prompt; special tokens written in a message are plain text."""
        ids: list[int] = []
        for message in in_words(template_turns(messages, knows_developer=True), tools):
            ids += [IM_START, *f"{message['role']}\n{message['content']}".encode(), IM_END, *b"\n"]
        is_asked = (names or {}).get("add_generation_prompt", True)
        return (*ids, IM_START, *b"assistant\n") if is_asked else tuple(ids)

    def token_bytes(self, token_id: int) -> bytes:
        """The byte itself; empty for special tokens."""
        if not 0 <= token_id < self.vocab_size:
            raise InvalidTokenError(f"token id {token_id} is not in 0 to {self.vocab_size - 1}")
        return bytes((token_id,)) if token_id < 256 else b""

    def token_label(self, token_id: int) -> str:
        """The character, a byte's hex, or a special token's name."""
        raw = self.token_bytes(token_id)
        return _SPECIAL_NAMES[token_id] if not raw else chr(raw[0]) if raw[0] < 128 else f"<0x{raw[0]:02X}>"


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step: a + b·new tokens + c·Σ context (the model that the scheduler's budgets will use)."""

    per_step: float = 0.0
    per_new_token: float = 0.0
    per_context_token: float = 0.0

    def __call__(self, plan: StepPlan) -> float:
        """Seconds that this plan takes."""
        context = sum(chunk.start + len(chunk.token_ids) for chunk in plan.chunks)
        return self.per_step + self.per_new_token * plan.new_tokens + self.per_context_token * context


class ScriptedRunner:
    """Runs plans on a toy model.

    ``alphabet``: the tokens it may choose (letters by default, so an answer runs to its ``max_tokens``).
    ``answer``: from the prompt's ids to the ids to answer with, then EOS, instead of the hash.
    ``cost`` and ``sleep``: how long a step takes, and who waits for it.
    ``fails``: an exception to raise for a chunk, None to go on; asked before anything is done.
    ``copy_delay``: how many executed plans later a swap is really done, as a slow bus would.
    """

    def __init__(
        self,
        *,
        block_count: int = 256,
        block_size: int = 16,
        host_slots: int = 0,
        copy_delay: int = 0,
        max_model_len: int = 1024,
        vocab_size: int = ByteTokenizer.vocab_size,
        eos_token_ids: frozenset[int] = ByteTokenizer.eos_token_ids,
        alphabet: Sequence[int] = LETTERS,
        answer: Callable[[tuple[int, ...]], Sequence[int]] | None = None,
        cost: Callable[[StepPlan], float] = StepCost(),
        sleep: Callable[[float], None] | None = None,
        fails: Callable[[Chunk], Exception | None] | None = None,
    ) -> None:
        self.block_count = block_count
        self.block_size = block_size
        self.host_slots = host_slots
        self.max_model_len = max_model_len
        self.vocab_size = vocab_size
        self.eos_token_ids = eos_token_ids
        self.steps: list[StepPlan] | None = None
        """Set to a list to record every plan that is executed."""
        self._alphabet = tuple(alphabet)
        self._answer = answer
        self._cost = cost
        self._sleep = sleep
        self._fails = fails
        self._known: dict[RequestKey, Admitted] = {}
        self._last = LastStep()
        # One word per slot: position and token id, so a slot read at the wrong position hashes differently.
        self._kv = array("Q", bytes(8 * block_count * block_size))
        self._host = array("Q", bytes(8 * host_slots * block_size))
        self._copy_delay = copy_delay
        self._swaps: list[StepPlan] = []
        """Plans whose swaps are still under way, oldest first."""

    @property
    def block_bytes(self) -> int:
        """One word of 8 bytes per slot."""
        return 8 * self.block_size

    @property
    def known_requests(self) -> int:
        """Requests announced and not yet released."""
        return len(self._known)

    def execute(self, plan: StepPlan) -> StepResult:
        """Forget, learn, write all KV of the step, then choose the tokens."""
        if self.steps is not None:
            self.steps.append(plan)
        for chunk in plan.chunks:
            failure = None if self._fails is None else self._fails(chunk)
            if failure is not None:
                raise failure
        for key in plan.released:
            self._known.pop(key, None)
        for admitted in plan.admitted:
            self._known[admitted.key] = admitted
        copied_step = self._copy(plan)
        chunks = self._last.fill(plan.chunks)
        for chunk in chunks:
            self._write(chunk)
        sampled = tuple(entry for chunk in chunks if chunk.samples for entry in self._sample(chunk))
        self._last.remember(chunks, sampled)
        elapsed_seconds = self._cost(plan)
        if self._sleep is not None:
            self._sleep(elapsed_seconds)
        return StepResult(plan.step, sampled, elapsed_seconds, copied_step)

    def reference(
        self, prompt_token_ids: Sequence[int], sampling: Sampling, max_tokens: int
    ) -> tuple[int, ...]:
        """The answer by the token history alone, without blocks, chunks or batches: what steps must give."""
        prompt = tuple(prompt_token_ids)
        history = list(prompt)
        for index in range(max_tokens):
            words = array("Q", [position << 32 | token_id for position, token_id in enumerate(history)])
            token_id = self._choose(words.tobytes(), prompt, sampling, index)
            history.append(token_id)
            is_eos = token_id in self.eos_token_ids and not sampling.ignore_eos
            if index >= sampling.min_tokens and (is_eos or token_id in sampling.stop_token_ids):
                break
        return tuple(history[len(prompt) :])

    def block(self, block: int) -> tuple[int, ...]:
        """The words in a device block: position << 32 | token of each slot."""
        return tuple(self._kv[block * self.block_size : (block + 1) * self.block_size])

    def _copy(self, plan: StepPlan) -> int:
        """Do the plan's copies and the swaps that are due; the step whose swaps are all done."""
        size = self.block_size
        for copy in plan.copies:
            self._kv[copy.target * size : (copy.target + 1) * size] = array("Q", self.block(copy.source))
        if plan.swaps_out or plan.swaps_in:
            self._swaps.append(plan)
        delay = self._copy_delay if plan.chunks else 0
        while self._swaps and self._swaps[0].step <= plan.step - delay:
            self._swap(self._swaps.pop(0))
        return self._swaps[0].step - 1 if self._swaps else plan.step

    def _swap(self, plan: StepPlan) -> None:
        size = self.block_size
        for copy in plan.swaps_out:
            self._host[copy.target * size : (copy.target + 1) * size] = array("Q", self.block(copy.source))
        for copy in plan.swaps_in:
            stored = self._host[copy.source * size : (copy.source + 1) * size]
            self._kv[copy.target * size : (copy.target + 1) * size] = stored

    def _write(self, chunk: Chunk) -> None:
        if chunk.key not in self._known:
            raise InvariantError(f"a chunk of {chunk.key}, which was never announced or is released")
        for position, token_id in enumerate(chunk.token_ids, start=chunk.start):
            block = chunk.block_table[position // self.block_size]
            self._kv[block * self.block_size + position % self.block_size] = position << 32 | token_id

    def _sample(self, chunk: Chunk) -> tuple[Sampled, ...]:
        """The token behind the last known one, and behind each right guess."""
        end = chunk.start + len(chunk.token_ids)
        rows = [self._sample_behind(chunk, end - row) for row in range(chunk.draft_tokens, -1, -1)]
        return tuple(rows[: count_right(drafts_of(chunk), rows) + 1])

    def _sample_behind(self, chunk: Chunk, end: int) -> Sampled:
        known = self._known[chunk.key]
        blocks = chunk.block_table[: -(-end // self.block_size)]
        size = self.block_size
        history = b"".join(self._kv[block * size : (block + 1) * size].tobytes() for block in blocks)
        index = end - len(known.prompt_token_ids)
        token_id = self._choose(history[: 8 * end], known.prompt_token_ids, known.sampling, index)
        return Sampled(chunk.key, token_id, self._logprobs(token_id, known.sampling.logprobs))

    def _choose(self, history: bytes, prompt: tuple[int, ...], sampling: Sampling, index: int) -> int:
        if self._answer is not None:
            script = self._answer(prompt)
            return script[index] if index < len(script) else min(self.eos_token_ids)
        seed = 0 if sampling.is_greedy else sampling.seed
        salt = (seed % 2**64).to_bytes(8, "little")
        digest = int.from_bytes(hashlib.blake2b(history, digest_size=8, salt=salt).digest(), "little")
        banned = (
            sampling.stop_token_ids | self.eos_token_ids if index < sampling.min_tokens else frozenset[int]()
        )
        for offset in range(len(self._alphabet)):
            token_id = self._alphabet[(digest + offset) % len(self._alphabet)]
            if token_id not in banned:
                return token_id
        return self._alphabet[digest % len(self._alphabet)]

    def _logprobs(self, token_id: int, count: int | None) -> Logprobs | None:
        """The chosen token has probability 1/2, the others of the alphabet 1/4, 1/8 and so on."""
        if count is None:
            return None
        others = [other for other in self._alphabet if other != token_id][: max(0, count - 1)]
        ranked = [token_id, *others][:count]
        top = tuple((other, -(place + 1) * math.log(2)) for place, other in enumerate(ranked))
        return Logprobs(-math.log(2), top)
