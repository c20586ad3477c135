"""``headway tenants`` and ``headway keys``: who may use the service, how much, and by which key."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from headway.services import cli_options as options
from headway.services.settings import default_state_dir
from headway.services.units import parse_duration

NO_LIMIT: Final = "none"

Tenant = Annotated[
    str, typer.Argument(metavar="TENANT", help="A tenant's name; '*': whoever has no limits of its own.")
]
Whose = Annotated[str, typer.Argument(metavar="TENANT", help="The tenant that the key stands for.")]


def _limit(help_text: str, metavar: str = "N") -> Any:
    return typer.Option(metavar=metavar, help=f"{help_text}; {NO_LIMIT} takes the limit away.")


Weight = Annotated[float | None, typer.Option(help="Share of the machine time; 1 for who has none.")]
Rpm = Annotated[str | None, _limit("Requests per minute")]
Tpm = Annotated[str | None, _limit("Tokens per minute, of prompts and answers")]
Concurrency = Annotated[str | None, _limit("Jobs in flight, waiting or running")]
QueuedJobs = Annotated[str | None, _limit("Waiting jobs")]
QueuedTokens = Annotated[str | None, _limit("Tokens that the waiting jobs may take")]
DailyTokens = Annotated[str | None, _limit("Tokens per day, which begins at midnight UTC")]
MaxTokens = Annotated[str | None, _limit("Longest answer in tokens")]
Deadline = Annotated[str | None, _limit("Deadline of jobs that bring none, such as 2m", "DURATION")]
Classes = Annotated[str | None, _limit("Classes allowed, such as standard,batch", "NAME,…")]
Models = Annotated[str | None, _limit("Models allowed", "NAME,…")]


def add_tenant_commands(app: typer.Typer) -> None:
    """Add both groups to the ``headway`` command."""
    tenants = options.group("Tenants' limits. A change is in force everywhere within a second.")
    tenants.command("set")(set_limits)
    tenants.command("show")(show)
    tenants.command("list")(list_all)
    tenants.command("rm")(remove)
    app.add_typer(tenants, name="tenants")
    keys = options.group("API keys. As long as there is none, anybody may post as any tenant.")
    keys.command("create")(create)
    keys.command("list")(list_keys)
    keys.command("revoke")(revoke)
    app.add_typer(keys, name="keys")


def set_limits(
    tenant: Tenant,
    *,
    weight: Weight = None,
    rpm: Rpm = None,
    tpm: Tpm = None,
    concurrency: Concurrency = None,
    queued_jobs: QueuedJobs = None,
    queued_tokens: QueuedTokens = None,
    daily_tokens: DailyTokens = None,
    max_tokens: MaxTokens = None,
    deadline: Deadline = None,
    classes: Classes = None,
    models: Models = None,
    json_output: options.JsonOutput = False,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """Set some of a tenant's limits; the others stay."""
    from headway.services.tenant_commands import as_line, set_tenant

    counts = {
        "rpm": rpm,
        "tpm": tpm,
        "concurrency": concurrency,
        "queued_jobs": queued_jobs,
        "queued_tokens": queued_tokens,
        "daily_tokens": daily_tokens,
        "max_tokens": max_tokens,
    }
    changes = {name: _read(name, text, _count) for name, text in counts.items() if text is not None}
    for name, text in (("classes", classes), ("models", models)):
        if text is not None:
            changes[name] = _read(name, text, _names)
    if deadline is not None:
        changes["deadline_seconds"] = _read("deadline", deadline, parse_duration)
    if weight is not None:
        changes["weight"] = weight
    shown = set_tenant(tenant, changes, redis_url, _state_dir(state_dir))
    print(json.dumps(shown) if json_output else as_line(shown))


def _read(name: str, text: str, parse: Callable[[str], object]) -> object | None:
    if text == NO_LIMIT:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=f"--{name.replace('_', '-')}") from None


def _count(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{text!r}: give a whole number, or {NO_LIMIT}") from None


def _names(text: str) -> list[str]:
    return [name for name in (part.strip() for part in text.split(",")) if name]


def show(
    tenant: Tenant,
    *,
    json_output: options.JsonOutput = False,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """Show the limits that hold for a tenant, and how it stands."""
    from headway.services.tenant_commands import as_lines, show_tenant

    shown = show_tenant(tenant, redis_url, _state_dir(state_dir))
    print(json.dumps(shown) if json_output else "\n".join(as_lines(shown)))


def list_all(
    *,
    json_output: options.JsonOutput = False,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """List the tenants that have limits of their own."""
    from headway.services.tenant_commands import as_line, list_tenants

    for shown in list_tenants(redis_url, _state_dir(state_dir)):
        print(json.dumps(shown) if json_output else as_line(shown))


def remove(
    tenant: Tenant, *, redis_url: options.RedisUrl = None, state_dir: options.StateDirectory = None
) -> None:
    """Take all of a tenant's limits away."""
    from headway.services.tenant_commands import remove_tenant

    remove_tenant(tenant, redis_url, _state_dir(state_dir))


def create(
    tenant: Whose,
    *,
    name: Annotated[str, typer.Option(help="What it is for, shown in the list.")] = "",
    admin: Annotated[
        bool, typer.Option("--admin", help="It may also change limits and keys over HTTP (/admin).")
    ] = False,
    json_output: options.JsonOutput = False,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """Make an API key for a tenant and print it, this one time."""
    from headway.services.tenant_commands import create_key

    made = create_key(tenant, name, redis_url, _state_dir(state_dir), is_admin=admin)
    print(json.dumps(made) if json_output else made["key"])


def list_keys(
    *,
    json_output: options.JsonOutput = False,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """List the keys: id, tenant, when made, name."""
    from headway.services.tenant_commands import keys_as_lines
    from headway.services.tenant_commands import list_keys as find_keys

    keys = find_keys(redis_url, _state_dir(state_dir))
    if json_output:
        for key in keys:
            print(json.dumps(key))
    elif keys:
        print("\n".join(keys_as_lines(keys)))


def revoke(
    key: Annotated[str, typer.Argument(metavar="KEY", help="A key's id from the list, or the key.")],
    *,
    may_open: Annotated[
        bool, typer.Option("--open", help="Also if it is the last key, which opens the service.")
    ] = False,
    redis_url: options.RedisUrl = None,
    state_dir: options.StateDirectory = None,
) -> None:
    """Refuse a key from now on."""
    from headway.services.tenant_commands import revoke_key

    print(f"revoked {revoke_key(key, redis_url, _state_dir(state_dir), may_open=may_open)}")


def _state_dir(given: Path | None) -> Path:
    return given or default_state_dir()
