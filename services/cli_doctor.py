"""``headway doctor``."""

from __future__ import annotations

import typer

from headway.services import cli_options as options
from headway.services.settings import default_state_dir


def add_doctor_command(app: typer.Typer) -> None:
    """Add the command to the ``headway`` command."""
    app.command()(doctor)


def doctor(
    *,
    json_output: options.JsonOutput = False,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """Check the queue's server and the fleet against the production checklist (docs/production.md).

    Looks only. Each line is ok, warn or fail; the exit code is 1 when one fails.
    """
    from headway.services.doctor import run_doctor
    from headway.services.terminal import Terminal

    report = run_doctor(redis_url, state_dir or default_state_dir())
    if json_output:
        print(report.to_json())
    else:
        report.show(Terminal())
    raise typer.Exit(report.exit_code)
