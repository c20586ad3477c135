"""``headway workers`` and ``top``: the fleet at work."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from headway.services import cli_options as options
from headway.services.errors import UsageError
from headway.services.settings import default_state_dir


def add_fleet_commands(app: typer.Typer) -> None:
    """Add the commands to the ``headway`` command."""
    app.command()(workers)
    app.command()(top)


def workers(
    *,
    json_output: options.JsonOutput = False,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """List the workers that live now.

    STEP is how long ago the engine's last step was while it has work, HEARD how long ago its last heartbeat.
    """
    from headway.services.columns import terminal_width
    from headway.services.worker_listing import as_json, as_lines, list_workers

    cards = list_workers(redis_url, state_dir or default_state_dir())
    if json_output:
        for card in cards:
            print(json.dumps(as_json(card)))
    else:
        print("\n".join(as_lines(cards, terminal_width())))


def top(
    *,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    json_output: Annotated[
        bool, typer.Option("--json", help="For scripts, with --once: one JSON value.")
    ] = False,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """Watch the queue, the tenants' shares and the workers; q or Ctrl-C leaves.

    DUE is a tenant's share by weight among those that wait now; SHARE its part of the tokens of all answers
    that run or ended in the last minute.
    """
    from headway.services.top import show_live, show_once

    place = state_dir or default_state_dir()
    if once:
        show_once(redis_url, place, as_json=json_output)
    elif json_output:
        raise UsageError("--json goes with --once", hint="headway top --once --json")
    else:
        show_live(redis_url, place)
