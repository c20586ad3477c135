"""The ``headway`` command. Commands import what they need when they run, so that all of them start fast.

Exit codes: 0 done, 2 wrong usage, 3 not reachable, 1 anything else.
"""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from headway.services import cli_options as options
from headway.services.cli_batch import add_batch_commands
from headway.services.cli_bench import add_bench_command
from headway.services.cli_calibrate import add_calibrate_command
from headway.services.cli_dlq import add_dlq_commands
from headway.services.cli_doctor import add_doctor_command
from headway.services.cli_fleet import add_fleet_commands
from headway.services.cli_gateway import add_gateway_command
from headway.services.cli_jobs import add_job_commands
from headway.services.cli_profile import add_profile_command
from headway.services.cli_simulate import add_simulate_command
from headway.services.cli_tenants import add_tenant_commands
from headway.services.cli_trace import add_trace_command
from headway.services.cli_tune import add_tune_command
from headway.services.cli_up import add_up_command
from headway.services.cli_worker import add_worker_command
from headway.services.errors import ServiceError, StartError
from headway.services.settings import default_state_dir
from headway.services.terminal import show_failure

app = typer.Typer(
    name="headway",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from headway import __version__

        print(f"headway {__version__}")
        raise typer.Exit


@app.callback()
def headway(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Message-queue-driven LLM inference: fair, durable, every token through Redis."""


add_up_command(app)
add_gateway_command(app)
add_worker_command(app)


@app.command()
def status(
    *,
    json_output: options.JsonOutput = False,
    state_dir: options.StateDirectory = None,
    redis_url: options.RedisUrl = None,
) -> None:
    """Say what runs, with pids.

    The `headway up` of a state dir, or the workers that registered at --redis-url. With --json the queue's
    URL is complete, its password included: pass it on as HEADWAY_REDIS_URL, and keep it out of logs.
    """
    from headway.services.status import find_status, nothing_runs

    place = state_dir or default_state_dir()
    found = find_status(place, redis_url)
    if json_output:
        print(json.dumps(found.to_json()))
    else:
        print("\n".join(found.table()) if found.runs else nothing_runs(place, redis_url))
    if not found.runs:
        raise typer.Exit(3)


@app.command()
def schema() -> None:
    """Print the job contract as JSON Schema."""
    from headway.queueing.messages import job_schema

    print(json.dumps(job_schema(), indent=2))


add_doctor_command(app)
add_job_commands(app)
add_batch_commands(app)
add_bench_command(app)
add_dlq_commands(app)
add_fleet_commands(app)
add_tenant_commands(app)
add_simulate_command(app)
add_trace_command(app)
add_profile_command(app)
add_calibrate_command(app)
add_tune_command(app)


def main() -> None:
    """Run the command line; expected failures become one message and an exit code."""
    try:
        app(prog_name="headway")
    except ServiceError as error:
        show_failure(error)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        if (error.name or "headway").partition(".")[0] == "headway":
            raise
        missing = StartError(
            f"{error.name} is not installed", hint="pip install 'headway[worker,gateway,embedded]'"
        )
        show_failure(missing)
        sys.exit(missing.exit_code)


if __name__ == "__main__":
    main()
