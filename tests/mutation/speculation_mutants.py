"""Guesses with one wrong line each, and the test that must notice."""

from __future__ import annotations

from tests.mutation.mutant import Mutant

WALK = "tests/simulation/test_guessing_walk.py"
CHOICE = "tests/engine/test_speculation.py"
ROWS = "tests/engine/test_guessed_rows.py"
LOOKUP = "tests/engine/test_prompt_lookup.py"

SPECULATION_MUTANTS = (
    Mutant(
        "guesses of a step count although a later one may have written over them",
        "engine/flight.py",
        "if not (entries and is_overtaken):",
        "if True:",
        WALK,
    ),
    Mutant(
        "wrong guesses count as computed",
        "engine/flight.py",
        "self.tokens[place] += max(0, right) - drafts",
        "self.tokens[place] += 0 * right",
        WALK,
    ),
    Mutant(
        "one token more than the right ones is taken",
        "engine/drafts.py",
        "            return place\n",
        "            return place + 1\n",
        ROWS,
    ),
    Mutant(
        "guesses take blocks that are not there",
        "engine/speculation.py",
        "        if more <= max(0, spare):",
        "        if more <= max(0, spare) + 1:",
        WALK,
    ),
    Mutant(
        "a guess reaches past the longest answer",
        "engine/speculation.py",
        "request.longest_tokens - request.known_tokens - 1)",
        "request.longest_tokens - request.known_tokens)",
        CHOICE,
    ),
    Mutant(
        "penalties do not count what was guessed before",
        "engine/sampler.py",
        "return known.followed_by(self.guessed) if known is not None and self.guessed else known",
        "return known",
        ROWS,
    ),
    Mutant(
        "a runner forgets which guesses were right",
        "engine/answer.py",
        "            answer.keep(chunk, len(entries) - 1)\n",
        "            answer.keep(chunk, 0)\n",
        ROWS,
    ),
    Mutant(
        "tokens behind an end are told",
        "engine/steps.py",
        "            if emissions[-1].finish_reason is not None:\n                break\n",
        "",
        CHOICE,
    ),
    Mutant(
        "a step that loses is no reason to rest",
        "engine/speculation.py",
        "        if self.gain < 1.0:",
        "        if False:",
        CHOICE,
    ),
    Mutant(
        "a tenant pays for wrong guesses",
        "engine/flights.py",
        "            end = start + tokens\n            paid = ",
        "            end = start + tokens + sum(flight.drafts)\n            paid = ",
        CHOICE,
    ),
    Mutant(
        "the first match is taken, not the longest",
        "engine/prompt_lookup.py",
        "            if matched > best[0]:",
        "            if not best[0]:",
        LOOKUP,
    ),
)
