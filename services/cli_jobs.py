"""``headway submit``, ``tail``, ``cancel`` and ``jobs``: a producer and a consumer for the command line.

They need the light client only, and find the server by ``--redis-url``, or by the running ``headway up``.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headway.services import cli_options as options
from headway.services.settings import default_state_dir


def add_job_commands(app: typer.Typer) -> None:
    """Add the commands to the ``headway`` command."""
    app.command()(submit)
    app.command()(tail)
    app.command()(cancel)
    jobs = options.group("What waits, runs and ended lately, and what happened to each job.")
    jobs.command("list")(list_all)
    jobs.command("show")(show)
    jobs.command("tail")(tail)
    jobs.command("cancel")(cancel)
    jobs.command("retry")(retry)
    app.add_typer(jobs, name="jobs")


def submit(
    prompt: Annotated[str, typer.Argument(help="What to ask; - reads it from the standard input.")],
    *,
    tenant: Annotated[str, typer.Option(envvar="HEADWAY_TENANT", help="Whose job it is.")] = "default",
    priority: Annotated[
        Literal["interactive", "standard", "batch"],
        typer.Option(envvar="HEADWAY_PRIORITY", help="Class band of the job."),
    ] = "standard",
    deadline: options.Deadline = None,
    demotable: Annotated[
        bool, typer.Option("--demotable", help="Rather late than never: past --deadline go on as batch.")
    ] = False,
    ttft: options.JobTtft = None,
    tpot: options.JobTpot = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, envvar="HEADWAY_MAX_TOKENS", help="Length limit of the answer.")
    ] = None,
    temperature: Annotated[
        float,
        typer.Option(min=0, max=2, envvar="HEADWAY_TEMPERATURE", help="0: always the most likely token."),
    ] = 1.0,
    seed: Annotated[
        int | None, typer.Option(envvar="HEADWAY_SEED", help="The same seed gives the same answer.")
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat/--raw", help="As a user's turn in a chat, or as text to continue.")
    ] = True,
    system: Annotated[
        str | None, typer.Option(help="Instructions for the model, before the prompt (chat only).")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            envvar=["HEADWAY_SERVED_NAME", "HEADWAY_MODEL"],
            help="Default: the model that is served, if it is one.",
        ),
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The same key again gives the same job.")
    ] = None,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """Post a job and print its id."""
    from headway.services.job_commands import submit_job

    if system is not None and not chat:
        raise typer.BadParameter("--system goes with --chat, not with --raw")
    if demotable and deadline is None:
        raise typer.BadParameter("--demotable goes with --deadline")
    if (ttft is None) != (tpot is None):
        raise typer.BadParameter("--ttft and --tpot belong together")
    sampling: dict[str, Any] = {"temperature": temperature, "max_tokens": max_tokens, "seed": seed}
    fields: dict[str, Any] = {
        "tenant": tenant,
        "priority": priority,
        "deadline_seconds": deadline,
        "demotable": demotable,
        "objective": None if ttft is None else {"ttft_seconds": ttft, "tpot_seconds": tpot},
        "idempotency_key": idempotency_key,
        "sampling": sampling,
        # Nobody is connected whose leaving could mean anything.
        "on_disconnect": "detach",
    }
    text = typer.get_text_stream("stdin").read() if prompt == "-" else prompt
    if chat:
        instructions = [] if system is None else [{"role": "system", "content": system}]
        fields["messages"] = [*instructions, {"role": "user", "content": text}]
    else:
        fields["prompt"] = text
    print(submit_job(fields, model, redis_url, _state_dir(state_dir)))


def tail(
    job: options.JobArgument,
    *,
    json_output: options.JsonOutput = False,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """Follow a job from its start to its end.

    Prints its text as it comes, or its events with --json.
    """
    from headway.services.job_commands import tail_job

    raise typer.Exit(tail_job(job, redis_url, _state_dir(state_dir), as_json=json_output))


def cancel(
    job: options.JobArgument,
    *,
    json_output: options.JsonOutput = False,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """Ask for the end of a job.

    Prints what it met: queued, running or finished.
    """
    from headway.services.job_commands import cancel_job

    met = cancel_job(job, redis_url, _state_dir(state_dir))
    print(json.dumps({"job_id": job, "met": met}) if json_output else met)


def list_all(
    *,
    tenant: Annotated[str | None, typer.Option(help="Of this tenant only.")] = None,
    state: Annotated[
        Literal["waiting", "running", "ended"] | None, typer.Option(help="In this state only.")
    ] = None,
    model: options.OfModel = None,
    limit: Annotated[
        int, typer.Option(min=1, max=10_000, metavar="N", help="How many of each state at most.")
    ] = 20,
    json_output: options.JsonOutput = False,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """List jobs: those that run, those that wait in the order of their turn, the newest that ended.

    Of ended jobs each model's last thousand or so are kept, for an hour at most; STATE says how they ended.
    """
    from headway.services.columns import terminal_width
    from headway.services.job_listing import Stage, Wanted, as_json, as_lines, list_jobs

    wanted = Wanted(tenant, None if state is None else Stage(state), model, limit)
    found = list_jobs(wanted, redis_url, _state_dir(state_dir))
    if json_output:
        for each in found.jobs:
            print(json.dumps(as_json(each)))
    else:
        print("\n".join(as_lines(found, round(time.time() * 1000), terminal_width())))


def show(
    job: options.JobArgument,
    *,
    json_output: options.JsonOutput = False,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """Show what happened to a job, step by step."""
    from headway.services.columns import terminal_width
    from headway.services.job_timeline import as_json, as_lines, show_job

    shown = show_job(job, redis_url, _state_dir(state_dir))
    print(json.dumps(as_json(shown)) if json_output else "\n".join(as_lines(shown, terminal_width())))


def retry(
    job: options.JobArgument,
    *,
    json_output: options.JsonOutput = False,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """Post an ended job again, as a new job, and print its id.

    Its deadline counts anew, its idempotency key not at all; it asks nothing of its tenant's limits.
    """
    from headway.services.job_commands import retry_job

    posted = retry_job(job, redis_url, _state_dir(state_dir))
    print(json.dumps({"job_id": posted.job_id, "retry_of": job}) if json_output else posted.job_id)


def _state_dir(given: Path | None) -> Path:
    return given or default_state_dir()
