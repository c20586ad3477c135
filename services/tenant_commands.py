"""What ``headway tenants`` and ``headway keys`` do once their options are read."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from headway.queueing.client import Client
from headway.queueing.errors import InvalidTenantError
from headway.queueing.tenant_book import KEY_PREFIX, ApiKey, digest_of, id_of, new_key
from headway.queueing.tenants import TenantLimits, check_tenant, read_limits
from headway.services.columns import Column, table, terminal_width
from headway.services.connection import locate
from headway.services.errors import ServiceError, UsageError
from headway.services.job_commands import with_client

_UNITS: Final = {"rpm": "requests/min", "tpm": "tokens/min", "daily_tokens": "tokens/day"}


def set_tenant(
    tenant: str, changes: Mapping[str, object], redis_url: str | None, state_dir: Path
) -> dict[str, Any]:
    """Change some limits; all of them afterwards. Raises ServiceError."""
    if not changes:
        raise UsageError("nothing to set", hint="headway tenants set --help lists the limits")
    try:  # before a server is looked for
        read_limits(tenant, {name: value for name, value in changes.items() if value is not None})
    except InvalidTenantError as error:
        raise UsageError(str(error)) from None
    url, _ = locate(redis_url, state_dir)

    async def act(client: Client) -> dict[str, Any]:
        wrong = (await client.queue.tenant_store.book()).broken_tenants.get(tenant)
        limits = await client.queue.tenant_store.set(tenant, changes)
        if wrong is not None:
            print(f"headway: replaced what could not be read of tenant {tenant} ({wrong})", file=sys.stderr)
        return _shown(tenant, limits)

    return with_client(url, act)


def show_tenant(tenant: str, redis_url: str | None, state_dir: Path) -> dict[str, Any]:
    """A tenant's limits and account; raises ServiceError."""
    url, _ = locate(redis_url, state_dir)

    async def act(client: Client) -> dict[str, Any]:
        check_tenant(tenant)
        book = await client.queue.tenant_store.book()
        limits = book.limits_of(tenant)
        usage = await client.queue.quota_store.usage(tenant, limits)
        shown = _shown(tenant, limits) | {"has_own_limits": tenant in book.tenants, "usage": usage.shown()}
        wrong = book.broken_tenants.get(tenant)
        return shown if wrong is None else shown | {"unreadable": wrong}

    return with_client(url, act)


def list_tenants(redis_url: str | None, state_dir: Path) -> list[dict[str, Any]]:
    """Every tenant with limits of its own, by name, and why one cannot be read. Raises ServiceError."""
    url, _ = locate(redis_url, state_dir)

    async def act(client: Client) -> list[dict[str, Any]]:
        book = await client.queue.tenant_store.book()
        shown = [_shown(name, limits) for name, limits in book.tenants.items()]
        broken = [{"tenant": name, "unreadable": wrong} for name, wrong in book.broken_tenants.items()]
        return sorted(shown + broken, key=lambda each: str(each["tenant"]))

    return with_client(url, act)


def remove_tenant(tenant: str, redis_url: str | None, state_dir: Path) -> None:
    """Forget a tenant's limits; raises ServiceError when it had none."""
    url, _ = locate(redis_url, state_dir)

    async def act(client: Client) -> bool:
        return await client.queue.tenant_store.remove(tenant)

    if not with_client(url, act):
        raise ServiceError(f"tenant {tenant} has no limits here", hint="headway tenants list")


def _shown(tenant: str, limits: TenantLimits) -> dict[str, Any]:
    return {"tenant": tenant, **limits.shown()}


def as_line(shown: Mapping[str, Any]) -> str:
    """A tenant's limits for people: what is set, in the words of the options."""
    if "weight" not in shown:
        return f"{shown['tenant']}: {_unreadable(shown)}"
    named = [name for name in TenantLimits.model_fields if name != "weight" and shown[name] is not None]
    parts = [f"weight {shown['weight']:g}", *(_words(name, shown[name]) for name in named)]
    return f"{shown['tenant']}: {', '.join(parts)}"


def _unreadable(shown: Mapping[str, Any]) -> str:
    name = shown["tenant"]
    return (
        f"unreadable, so its limits do not hold ({shown['unreadable']}); "
        f"`headway tenants set {name} …` repairs them, `headway tenants rm {name}` removes them"
    )


def _words(name: str, value: int | float | list[str]) -> str:
    text = ",".join(value) if isinstance(value, list) else f"{value:g}" if isinstance(value, float) else value
    return f"{text} {_UNITS[name]}" if name in _UNITS else f"{name.replace('_', '-')} {text}"


def as_lines(shown: Mapping[str, Any]) -> list[str]:
    """Limits and account for people."""
    usage = shown["usage"]
    lines = [
        as_line(shown) + ("" if shown["has_own_limits"] else " (no limits of its own)"),
        *([f"  its own are {_unreadable(shown)}"] if "unreadable" in shown else []),
        f"  in flight    {usage['in_flight']} jobs, {usage['waiting_jobs']} of them waiting; "
        f"{usage['held_tokens']} tokens reserved",
        f"  spent today  {usage['spent_tokens_today']} tokens (since midnight UTC)",
    ]
    rates = [(kind, usage[kind]) for kind in ("requests", "tokens") if usage[kind] is not None]
    return lines + [
        f"  {kind:<11}  {rate['remaining']} left now, all in {rate['reset_seconds']:g} s"
        for kind, rate in rates
    ]


# -- keys ---------------------------------------------------------------------------------------------


def create_key(
    tenant: str, name: str, redis_url: str | None, state_dir: Path, *, is_admin: bool = False
) -> dict[str, Any]:
    """A new key, the only time that it is seen. Raises ServiceError."""
    url, _ = locate(redis_url, state_dir)
    secret = new_key()

    async def act(client: Client) -> dict[str, Any]:
        was_open = (await client.queue.tenant_store.book()).is_open
        key = await client.queue.tenant_store.add_key(tenant, name, secret, is_admin=is_admin)
        if was_open:
            print("headway: this is the first key: from now on every request needs one", file=sys.stderr)
        return _key(key) | {"key": secret}

    return with_client(url, act)


def list_keys(redis_url: str | None, state_dir: Path) -> list[dict[str, Any]]:
    """Every key's id, tenant, name and age, the oldest first, then those unreadable. Raises ServiceError."""
    url, _ = locate(redis_url, state_dir)

    async def act(client: Client) -> list[dict[str, Any]]:
        book = await client.queue.tenant_store.book()
        keys = sorted(book.keys.values(), key=lambda each: (each.created_ms, each.id))
        broken = sorted(book.broken_keys.items())
        return [_key(key) for key in keys] + [
            {"id": id_of(digest), "unreadable": wrong} for digest, wrong in broken
        ]

    return with_client(url, act)


def keys_as_lines(keys: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys for people."""
    columns = (Column("ID"), Column("TENANT"), Column("MADE (UTC)"), Column("NAME"))
    rows = [
        (key["id"], "?", "?", f"unreadable: {key['unreadable']}")
        if "unreadable" in key
        else (key["id"], key["tenant"], _date(key["created_ms"]), key["name"] + _mark(key))
        for key in keys
    ]
    return table(columns, rows, terminal_width())


def _mark(key: Mapping[str, Any]) -> str:
    return f"{' ' if key['name'] else ''}(administrator)" if key["admin"] else ""


def _date(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M}"


def revoke_key(key: str, redis_url: str | None, state_dir: Path, *, may_open: bool) -> str:
    """Refuse a key, given by its id or itself, from now on; its id. Raises ServiceError.

    The last key is taken away only with ``may_open``: without any, everybody may post as anybody.
    """
    url, _ = locate(redis_url, state_dir)

    async def act(client: Client) -> str:
        book = await client.queue.tenant_store.book()
        keys = {*book.keys, *book.broken_keys}
        digest = digest_of(key) if key.startswith(KEY_PREFIX) else _by_id(keys, key)
        if digest not in keys:
            raise ServiceError("there is no such key", hint="headway keys list")
        if len(keys) == 1 and not may_open:
            raise UsageError(
                "this is the last key: without it the service is open to everybody",
                hint="headway keys create TENANT first, or add --open",
            )
        await client.queue.tenant_store.revoke_key(digest)
        return id_of(digest)

    return with_client(url, act)


def _by_id(digests: Iterable[str], key_id: str) -> str:
    """The digest that an id stands for; what somebody wrote by hand may be shorter than any id."""
    found = [
        digest for digest in digests if digest == key_id or (len(key_id) >= 4 and digest.startswith(key_id))
    ]
    return found[0] if len(found) == 1 else ""


def _key(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "tenant": key.tenant,
        "name": key.name,
        "created_ms": key.created_ms,
        "admin": key.is_admin,
    }
