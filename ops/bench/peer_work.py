"""The work that everybody gets: prompts in token ids and lengths of answers, the same for all of a cell.

Each cell of each round has prompts of its own, so that no cache holds them from before; within a cell they
share the chat template's beginning and nothing else.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

PROMPT_TOKENS: Final = (120, 240)
"""Shortest and longest, evenly spread: 180 on average."""
ANSWER_TOKENS: Final = (48, 140)
"""The same: 94 on average."""
FIRST_TOKENS: Final = 4
"""Of the first question and its answer."""
_SUBJECTS: Final = (
    "harbour",
    "engineer",
    "garden",
    "library",
    "mountain",
    "teacher",
    "orchestra",
    "river",
    "market",
    "satellite",
)
_VERBS: Final = (
    "repairs",
    "describes",
    "measures",
    "paints",
    "discovers",
    "explains",
    "borrows",
    "follows",
    "protects",
    "counts",
)
_OBJECTS: Final = (
    "bridge",
    "letter",
    "machine",
    "forest",
    "kitchen",
    "theory",
    "bicycle",
    "lantern",
    "planet",
    "recipe",
)
_ENDS: Final = (
    "at night",
    "in spring",
    "near the coast",
    "for a friend",
    "without a map",
    "after the storm",
    "on Mondays",
)
_LINKS: Final = ("and then", "because", "although", "while", "so")


@dataclass(frozen=True)
class Work:
    """One request: greedy, of exactly this length."""

    prompt: tuple[int, ...]
    answer_tokens: int


def lengths(count: int, bounds: tuple[int, int], rng: random.Random) -> list[int]:
    """``count`` numbers spread evenly between the bounds, in random order: any count has the same mean."""
    low, high = bounds
    spread = [round(low + (high - low) * (place + 0.5) / count) for place in range(count)]
    rng.shuffle(spread)
    return spread


def sentence(rng: random.Random) -> str:
    """A few plain English words."""
    subject, verb, thing, end = (rng.choice(words) for words in (_SUBJECTS, _VERBS, _OBJECTS, _ENDS))
    return f"the {subject} {verb} the {thing} {end} {rng.choice(_LINKS)}"


def make_work(
    count: int,
    seed: str,
    *,
    encode: Callable[[str], Sequence[int]],
    around: tuple[Sequence[int], Sequence[int]],
) -> list[Work]:
    """``count`` requests. ``around``: the chat template's ids before and after a message."""
    rng = random.Random(seed)
    before, after = around
    prompts = lengths(count, PROMPT_TOKENS, rng)
    answers = lengths(count, ANSWER_TOKENS, rng)
    made: list[Work] = []
    for prompt_tokens, answer_tokens in zip(prompts, answers, strict=True):
        needed = prompt_tokens - len(before) - len(after)
        # The number first: two prompts differ from their first token on.
        text = f"{rng.randrange(10**6)}: "
        while len(ids := encode(text)) < needed:
            text += " ".join(sentence(rng) for _ in range(8)) + " "
        made.append(Work((*before, *ids[:needed], *after), answer_tokens))
    return made


def template_ids(render: Callable[[str], Sequence[int]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What a chat template puts before and after a user's message."""
    one, other = tuple(render("1")), tuple(render("hello"))
    before = 0
    while one[before] == other[before]:
        before += 1
    after = 0
    while one[-1 - after] == other[-1 - after]:
        after += 1
    return one[:before], one[len(one) - after :]


def first_of(work: Work) -> Work:
    """A question of the same kind, answered in moments: whether a server is there is not how fast it is."""
    return replace(
        work, prompt=work.prompt[:FIRST_TOKENS], answer_tokens=min(work.answer_tokens, FIRST_TOKENS)
    )
