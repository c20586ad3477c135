"""Prompts of a wanted number of tokens, of random words or cut from files, for any server.

Words that nearly every tokenizer keeps whole are counted out; what the model's own tokenizer says of them is
asked before (a template's tokens, a word's), and compared after with what each answer's usage says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from headway.services.bench.answer import Planned
from headway.services.errors import ServiceError, UsageError

WORDS: Final = tuple(Path(__file__).with_name("words.txt").read_text(encoding="ascii").split())
"""The most common ones of English: one token each with its space in front, in the vocabularies of our day."""
LETTERS: Final = tuple("abcdefghijklmnopqrstuvwxyz")
"""For a tokenizer of bytes."""
CALIBRATED: Final = (48, 144)
"""Units of the two texts whose difference tells a unit's tokens."""

Count = Callable[[str], Awaitable[int | None]]


@dataclass(frozen=True, slots=True)
class Unit:
    """What a synthetic prompt is made of."""

    parts: tuple[str, ...]
    joint: str
    tokens_each: float
    """Measured; 1: exact."""
    fixed_tokens: float
    """Of a prompt without any: the template's, a mark of the beginning."""

    def count_of(self, tokens: int) -> int:
        """How many make a prompt of so many tokens."""
        return max(1, round((tokens - self.fixed_tokens) / self.tokens_each))


class PromptWriter:
    """Writes a prompt for each planned request; the same seed and number give the same text."""

    def __init__(self, unit: Unit, texts: Sequence[Sequence[str]], seed: str) -> None:
        self._unit = unit
        self._texts = texts
        self._seed = seed

    @property
    def is_exact(self) -> bool:
        """Whether a unit was seen to be one token."""
        return self._unit.tokens_each == 1.0 and not self._texts

    @property
    def unit(self) -> Unit:
        """What it writes with."""
        return self._unit

    def write(self, planned: Planned, point: str) -> str:
        """No two requests of a run share more than the prefix that their tenant asks for."""
        demand, unit = planned.demand, self._unit
        count = unit.count_of(demand.prompt_tokens)
        random = Random(f"{self._seed} {point} {demand.tenant} {planned.number}")
        shared = min(count, round(demand.shared_prefix_tokens / unit.tokens_each))
        # The prefix is the same at every point: a cache that is warm is what the operator asks about.
        parts = Random(f"{self._seed} prefix {demand.tenant}").choices(unit.parts, k=shared)
        if self._texts:
            return unit.joint.join([*parts, *self._cut(count - shared, random)])
        parts += random.choices(unit.parts, k=count - shared)
        parts[0] = unit.parts[0]  # the one that was counted without a space in front
        return unit.joint.join(parts)

    def _cut(self, count: int, random: Random) -> list[str]:
        """So many words in a row from one of the texts; a short one is read again from its start."""
        words = random.choice(self._texts)
        start = random.randrange(len(words))
        return [words[(start + place) % len(words)] for place in range(count)]


async def make_writer(
    count: Count, texts: Sequence[Path], seed: str, *, context_tokens: int | None = None
) -> PromptWriter:
    """Ask what words come to. Raises UsageError for a text that is none, ServiceError where nobody counts."""
    read = [read_words(path) for path in texts]
    if read:
        unit = await _calibrate(count, [word for words in read for word in words], " ", context_tokens)
        return PromptWriter(unit, read, seed)
    unit = await _calibrate(count, WORDS, " ", context_tokens)
    if unit.tokens_each != 1.0:
        # No vocabulary of words: one of bytes counts letters.
        other = await _calibrate(count, LETTERS, "", context_tokens)
        unit = other if other.tokens_each == 1.0 else unit
    return PromptWriter(unit, (), seed)


def read_words(path: Path) -> list[str]:
    """The words of a file. Raises UsageError."""
    try:
        words = path.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the text {path}: {error}") from None
    if not words:
        raise UsageError(f"the text {path} is empty")
    return words


async def _calibrate(count: Count, parts: Sequence[str], joint: str, context_tokens: int | None) -> Unit:
    """Two texts, one the start of the other: what the longer one has more is its units' tokens."""
    short, long = CALIBRATED
    if context_tokens is not None and context_tokens < 8 * long:
        short, long = 4, 12
    cycle = [parts[place % len(parts)] for place in range(max(long, min(len(parts), 4 * long)))]
    few, many = joint.join(cycle[:short]), joint.join(cycle)
    fewer, more = await count(few), await count(many)
    if fewer is None or more is None or more <= fewer:
        raise ServiceError(
            "the server has no /tokenize and tells no prompt's tokens in usage: prompts have no known length",
            hint="--tokenizer FILE, the model's own tokenizer.json",
        )
    tokens_each = (more - fewer) / (len(cycle) - short)
    return Unit(tuple(parts), joint, tokens_each, fewer - short * tokens_each)
