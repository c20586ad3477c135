"""``headway batch`` and ``headway webhooks``: work through files of requests, and tell of their end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from headway.services import cli_batch_options as batch_options
from headway.services import cli_options as options
from headway.services.settings import DEFAULT_HOST, DEFAULT_REDIS_URL, default_state_dir

BatchArgument = Annotated[str, typer.Argument(metavar="BATCH", help="A batch's id, such as batch_6f0c….")]
Whose = Annotated[str, typer.Argument(metavar="TENANT", help="Whose batches they tell of.")]


def add_batch_commands(app: typer.Typer) -> None:
    """Add both groups to the ``headway`` command."""
    batch = options.group("Files of requests, worked through in whatever capacity others leave.")
    batch.command("run")(run)
    batch.command("list")(list_all)
    batch.command("show")(show)
    batch.command("cancel")(cancel)
    batch.command("worker")(worker)
    app.add_typer(batch, name="batch")
    webhooks = options.group("Who is told when a batch or a background response ends.")
    webhooks.command("create")(create_webhook)
    webhooks.command("list")(list_webhooks)
    webhooks.command("rm")(remove_webhook)
    app.add_typer(webhooks, name="webhooks")


def run(
    file: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="Requests, a line each, as OpenAI's.")],
    *,
    output: Annotated[Path, typer.Option("-o", "--output", metavar="OUT.jsonl", help="Where answers go.")],
    errors: Annotated[
        Path | None,
        typer.Option(
            "-e", "--errors", metavar="ERR.jsonl", help="Where errors go.", show_default="OUT.errors.jsonl"
        ),
    ] = None,
    tenant: Annotated[str, typer.Option(envvar="HEADWAY_TENANT", help="Whose jobs they are.")] = "default",
    in_flight: Annotated[int, typer.Option(min=1, max=10_000, help="Lines in the queue at a time.")] = 256,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar.")] = False,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """Work through a file, here and now, and show how far it is.

    Ctrl-C stops it; the same command goes on where it stopped. Needs no gateway and no batch service.
    """
    from headway.services.batch.local_run import LocalRun

    local = LocalRun(file, output, errors or output.with_suffix(".errors.jsonl"), tenant, in_flight)
    raise typer.Exit(local.run(redis_url, state_dir or default_state_dir(), shows=not quiet))


def list_all(
    *,
    tenant: Annotated[str, typer.Option(envvar="HEADWAY_TENANT", help="Whose batches.")] = "default",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="The newest of them.")] = 20,
    json_output: options.JsonOutput = False,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """A tenant's batches, the newest first."""
    from headway.services.batch.commands import batch_table, list_batches

    found = list_batches(tenant, limit, redis_url, state_dir or default_state_dir())
    print(json.dumps(found) if json_output else batch_table(found))


def show(
    batch: BatchArgument,
    *,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """All that is known of a batch, as JSON."""
    from headway.services.batch.commands import show_batch

    print(json.dumps(show_batch(batch, redis_url, state_dir or default_state_dir()), indent=2))


def cancel(
    batch: BatchArgument,
    *,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """Ask for the end of a batch; what is done by then is kept."""
    from headway.services.batch.commands import cancel_batch

    print(cancel_batch(batch, redis_url, state_dir or default_state_dir()))


def worker(
    *,
    redis_url: options.RedisUrl = DEFAULT_REDIS_URL,
    broker_url: batch_options.BrokerUrl = None,
    files: batch_options.Files = None,
    concurrency: Annotated[
        int,
        typer.Option(min=1, max=256, envvar="HEADWAY_BATCH_CONCURRENCY", help="Batches worked on at a time."),
    ] = 4,
    in_flight: Annotated[
        int,
        typer.Option(
            min=1,
            max=10_000,
            envvar="HEADWAY_BATCH_IN_FLIGHT",
            help="Lines of a batch in the queue at a time.",
        ),
    ] = 256,
    webhook_allow_private: batch_options.AllowPrivate = False,
    heartbeat_file: batch_options.HeartbeatFile = None,
    metrics_port: options.MetricsPort = None,
    metrics_host: options.MetricsHost = DEFAULT_HOST,
    ready_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
    log_format: options.LogFormatOption = "auto",
    log_level: options.LogLevel = "info",
) -> None:
    """Run one process of the batch service (Celery): batches, webhooks, retention, books of usage."""
    from headway.services.batch.settings import BatchSettings, StepSettings, default_files
    from headway.services.batch.worker_process import run_batch_worker

    settings = BatchSettings(
        redis_url=redis_url or DEFAULT_REDIS_URL,
        broker_url=broker_url,
        files=files or default_files(),
        concurrency=concurrency,
        allows_private_webhooks=webhook_allow_private,
        heartbeat_file=heartbeat_file,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        ready_fd=ready_fd,
        log_format=log_format,
        log_level=log_level,
        step=StepSettings(most_in_flight=in_flight),
    )
    raise typer.Exit(run_batch_worker(settings))


def create_webhook(
    tenant: Whose,
    url: Annotated[str, typer.Argument(metavar="URL", help="Gets a POST for each event.")],
    *,
    events: Annotated[
        str, typer.Option(metavar="NAME,…", help="Such as batch.completed,response.failed; all by default.")
    ] = "",
    allow_private: batch_options.AllowPrivate = False,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """Add a webhook, and print the secret that signs its messages: it is shown only now."""
    from headway.services.batch.commands import add_webhook

    made = add_webhook(
        tenant, url, events, redis_url, state_dir or default_state_dir(), allows_private=allow_private
    )
    print(f"{made.webhook_id}  {made.secret}")


def list_webhooks(
    tenant: Whose,
    *,
    json_output: options.JsonOutput = False,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """A tenant's webhooks."""
    from headway.services.batch.commands import find_webhooks, webhook_table

    found = find_webhooks(tenant, redis_url, state_dir or default_state_dir())
    print(json.dumps(found) if json_output else webhook_table(found))


def remove_webhook(
    tenant: Whose,
    webhook: Annotated[str, typer.Argument(metavar="WEBHOOK", help="Its id, as list shows it.")],
    *,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """Remove a webhook."""
    from headway.services.batch.commands import drop_webhook

    drop_webhook(tenant, webhook, redis_url, state_dir or default_state_dir())
