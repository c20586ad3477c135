"""``headway dlq``: the jobs that were given up."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from headway.services import cli_options as options
from headway.services.errors import UsageError
from headway.services.settings import default_state_dir

if TYPE_CHECKING:
    from headway.services.dead_letter_commands import Chosen, Letter

Ids = Annotated[
    list[str] | None, typer.Argument(metavar="ID…", help="Dead letters, by their ids or their jobs'.")
]
All = Annotated[bool, typer.Option("--all", help="All of them.")]
Reason = Annotated[str | None, typer.Option(metavar="REASON", help="Those with this reason.")]


def add_dlq_commands(app: typer.Typer) -> None:
    """Add the group to the ``headway`` command."""
    dlq = options.group("Dead letters: jobs that were given up. Their bodies are kept for a week.")
    dlq.command("list")(list_all)
    dlq.command("show")(show)
    dlq.command("redrive")(redrive)
    dlq.command("purge")(purge)
    app.add_typer(dlq, name="dlq")


def list_all(
    *,
    reason: Reason = None,
    model: options.OfModel = None,
    limit: options.Limit = 50,
    json_output: options.JsonOutput = False,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """List dead letters, the newest first."""
    from headway.services.columns import terminal_width
    from headway.services.dead_letter_commands import Chosen, as_json, as_lines, list_letters

    letters = list_letters(Chosen(reason=reason, model=model), redis_url, state_dir or default_state_dir())
    if json_output:
        for each in letters[:limit]:
            print(json.dumps(as_json(each)))
        return
    print("\n".join(as_lines(letters[:limit], terminal_width())))
    if len(letters) > limit:
        print(f"\n{len(letters):,} in all: --limit N")


def show(
    letter: Annotated[str, typer.Argument(metavar="ID", help="A dead letter's id, or its job's.")],
    *,
    model: options.OfModel = None,
    json_output: options.JsonOutput = False,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """Show a dead letter, and what happened to its job."""
    from headway.services.columns import terminal_width
    from headway.services.dead_letter_commands import show_letter, shown_as_json, shown_as_lines

    found, job = show_letter(letter, model, redis_url, state_dir or default_state_dir())
    if json_output:
        print(json.dumps(shown_as_json(found, job)))
    else:
        print("\n".join(shown_as_lines(found, job, terminal_width())))


def redrive(
    ids: Ids = None,
    *,
    every: All = False,
    reason: Reason = None,
    model: options.OfModel = None,
    yes: options.Yes = False,
    json_output: options.JsonOutput = False,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """Post dead letters again, as new jobs, and take them out of the list.

    Asks before it posts more than were named one by one. The new jobs ask nothing of their tenants' limits.
    """
    from headway.services import dead_letter_commands as commands

    chosen = _chosen(ids, every, reason, model)
    confirm = _asks(f"Post {{}} again, as new jobs of their tenants{_where(model)}?", yes or bool(ids))
    done, stopped = commands.redrive(chosen, confirm, redis_url, state_dir or default_state_dir())
    for each in done:
        if json_output:
            print(json.dumps(asdict(each)))
        else:
            print(
                f"{each.job_id} again as {each.new_job_id}"
                if each.new_job_id
                else f"{each.entry_id}: {each.problem}"
            )
    if stopped is not None:
        raise stopped
    if any(each.problem for each in done):
        raise typer.Exit(1)


def purge(
    ids: Ids = None,
    *,
    every: All = False,
    reason: Reason = None,
    model: options.OfModel = None,
    yes: options.Yes = False,
    json_output: options.JsonOutput = False,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """Forget dead letters and their bodies. There is no way back, so it asks first."""
    from headway.services import dead_letter_commands as commands

    chosen = _chosen(ids, every, reason, model)
    confirm = _asks(f"Forget {{}} for good, with what they asked{_where(model)}?", yes)
    removed = commands.purge(chosen, confirm, redis_url, state_dir or default_state_dir())
    print(json.dumps({"purged": removed}) if json_output else f"purged {removed}")


def _chosen(ids: Sequence[str] | None, every: bool, reason: str | None, model: str | None) -> Chosen:
    from headway.services.dead_letter_commands import Chosen

    if sum((bool(ids), every, reason is not None)) != 1:
        raise UsageError("say which dead letters", hint="give their IDs, --reason REASON, or --all")
    return Chosen(tuple(ids or ()), reason, model)


def _where(model: str | None) -> str:
    return "" if model is None else f" ({model} only)"


def _asks(question: str, may_do: bool) -> Callable[[Sequence[Letter]], None]:
    def confirm(letters: Sequence[Letter]) -> None:
        if may_do:
            return
        count = "1 dead letter" if len(letters) == 1 else f"{len(letters)} dead letters"
        options.ask(question.format(count))

    return confirm
