"""Options that were typed although they say nothing beside others are refused: nobody is to believe in them.

A value out of the environment is no such statement: it may be there for another command.
"""

from __future__ import annotations

from collections.abc import Iterable

import typer

from headway.services.errors import UsageError


def refuse_ignored(
    context: typer.Context, names: Iterable[str], reason: str, hint: str | None = None
) -> None:
    """Raise UsageError where one of these parameters was typed: ``reason`` says why it would be ignored."""
    typed = [name for name in names if was_typed(context, name)]
    if typed:
        flags = {parameter.name: parameter.opts[0] for parameter in context.command.params}
        told = ", ".join(flags[name] for name in typed)
        raise UsageError(f"{told} would be ignored: {reason}", hint=hint)


def was_typed(context: typer.Context, name: str) -> bool:
    """Whether a parameter comes from the command line, not from its default or the environment."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def typed_of(context: typer.Context) -> list[str]:
    """All parameters that were typed."""
    return [name for name in context.params if was_typed(context, name)]
