"""The job contract's constraint in the grammar library's words: for the worker, and for whoever checks jobs
before."""

from __future__ import annotations

from headway.engine.errors import GrammarError
from headway.engine.grammar_source import (
    choice_source,
    grammar_source,
    json_schema_source,
    refusal,
    regex_source,
)
from headway.queueing.messages import Constraint


def source_of(constraint: Constraint) -> str:
    """What the engine holds the answer to; GrammarError for what cannot even be read."""
    try:
        if constraint.json_schema is not None:
            return json_schema_source(constraint.json_schema)
        if constraint.regex is not None:
            return regex_source(constraint.regex)
        if constraint.choice is not None:
            return choice_source(constraint.choice)
        return grammar_source(constraint.grammar or "")
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the constraint cannot be read: {error}") from None


def field_of(constraint: Constraint) -> str:
    """Which of the four forms is given: the name of the field at fault."""
    return next(name for name in type(constraint).model_fields if getattr(constraint, name) is not None)


def constraint_refusal(constraint: Constraint) -> str | None:
    """Why no answer can be held to it, in words for whoever asked; None: some can.

    Takes milliseconds as a rule and seconds at most, so it runs in a thread.
    """
    try:
        return refusal(source_of(constraint))
    except GrammarError as error:
        return str(error)
