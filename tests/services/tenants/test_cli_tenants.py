"""``headway tenants`` and ``headway keys``: what they change, print and refuse."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from headway.queueing.server import Server
from headway.queueing.tenants import TenantLimits

if TYPE_CHECKING:
    import subprocess

    from tests.services.up.conftest import Command


@pytest.fixture
def ask(command: Command, redis_url: str) -> Command:
    """A command against the server."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return command(*arguments, "--redis-url", redis_url)

    return run


def test_set_prints_every_limit_for_scripts(ask: Command) -> None:
    done = ask("tenants", "set", "acme", "--rpm", "50", "--tpm", "100000", "--weight", "2", "--json")
    assert done.returncode == 0
    shown = json.loads(done.stdout)
    assert {"tenant": "acme", "rpm": 50, "tpm": 100000, "weight": 2.0}.items() <= shown.items()
    assert set(shown) == {"tenant", *TenantLimits.model_fields}


def test_set_changes_what_it_names_and_none_takes_a_limit_away(ask: Command) -> None:
    ask("tenants", "set", "acme", "--rpm", "50", "--classes", "batch,standard", "--deadline", "2m")
    done = ask("tenants", "set", "acme", "--rpm", "none", "--models", "a/b", "--weight", "0.5")
    assert done.stdout == "acme: weight 0.5, classes batch,standard, models a/b, deadline-seconds 120\n"


def test_list_and_rm(ask: Command) -> None:
    assert ask("tenants", "list").stdout == ""
    ask("tenants", "set", "b", "--rpm", "1")
    ask("tenants", "set", "a", "--daily-tokens", "5")
    assert ask("tenants", "list").stdout == "a: weight 1, 5 tokens/day\nb: weight 1, 1 requests/min\n"
    lines = ask("tenants", "list", "--json").stdout.splitlines()
    assert [json.loads(line)["tenant"] for line in lines] == ["a", "b"]
    assert ask("tenants", "rm", "a").returncode == 0
    gone = ask("tenants", "rm", "a")
    assert (gone.returncode, "has no limits here" in gone.stderr) == (1, True)


def test_show_tells_limits_and_standing_also_of_a_tenant_without_its_own(ask: Command) -> None:
    ask("tenants", "set", "*", "--rpm", "7")
    shown = json.loads(ask("tenants", "show", "somebody", "--json").stdout)
    assert (shown["rpm"], shown["has_own_limits"]) == (7, False)
    assert shown["usage"]["requests"] == {"remaining": 7, "reset_seconds": 0.0}
    assert "(no limits of its own)" in ask("tenants", "show", "somebody").stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("acme",), "nothing to set"),
        (("acme", "--rpm", "many"), "'many': give a whole number, or none"),
        (("acme", "--rpm", "0"), "rpm: should be greater than or equal to 1 (it is 0)"),
        (("acme", "--weight", "-1"), "weight"),
        (("acme", "--classes", "urgent"), "should be 'interactive', 'standard' or 'batch'"),
        (("acme", "--deadline", "soon"), "a duration is written like 30s"),
        (("a b", "--rpm", "1"), "tenant 'a b'"),
        (("*", "--weight", "2"), "a tenant that is not named has weight 1"),
    ],
)
def test_what_cannot_be_is_told_and_changes_nothing(
    ask: Command, arguments: tuple[str, ...], told: str
) -> None:
    done = ask("tenants", "set", *arguments)
    assert done.returncode == 2
    assert told in done.stderr
    assert ask("tenants", "list").stdout == ""


def test_nobody_there_is_exit_code_3(command: Command) -> None:
    for arguments in (("tenants", "list"), ("tenants", "set", "a", "--rpm", "1"), ("keys", "create", "a")):
        assert command(*arguments, "--redis-url", "redis://127.0.0.1:1/0").returncode == 3
        assert command(*arguments).returncode == 3


def test_a_key_is_shown_once_and_kept_as_a_digest(ask: Command) -> None:
    made = ask("keys", "create", "acme", "--name", "laptop")
    secret = made.stdout.strip()
    assert secret.startswith("hw-")
    assert len(secret) == 46
    assert "first key" in made.stderr
    second = json.loads(ask("keys", "create", "b", "--json").stdout)
    assert set(second) == {"id", "tenant", "name", "created_ms", "admin", "key"}
    listed = ask("keys", "list")
    assert secret not in listed.stdout
    assert [line.split()[1] for line in listed.stdout.splitlines()] == ["TENANT", "acme", "b"]
    assert listed.stdout.splitlines()[1].endswith("laptop")
    assert json.loads(ask("keys", "list", "--json").stdout.splitlines()[1])["id"] == second["id"]


def test_the_last_key_is_revoked_only_when_opening_is_meant(ask: Command) -> None:
    first = ask("keys", "create", "acme").stdout.strip()
    second = json.loads(ask("keys", "create", "acme", "--json").stdout)
    assert ask("keys", "revoke", second["id"]).stdout == f"revoked {second['id']}\n"
    assert ask("keys", "revoke", second["id"]).returncode == 1
    refused = ask("keys", "revoke", first)
    assert refused.returncode == 2
    assert "open to everybody" in refused.stderr
    assert ask("keys", "revoke", first, "--open").returncode == 0
    assert ask("keys", "list").stdout == ""


def redis_command(url: str, *command: str) -> None:
    async def run() -> None:
        server = Server(url)
        await server.call(*command)
        await server.close()

    asyncio.run(run())


def test_what_cannot_be_read_is_listed_and_can_be_repaired_or_removed(ask: Command, redis_url: str) -> None:
    redis_command(redis_url, "HSET", "tenants:{sys}", "acme", "not JSON", "b", '{"rpm":"x"}')
    redis_command(redis_url, "HSET", "keys:{sys}", "ab" * 32, '{"tenant":"acme","created_ms":1e99}')
    listed = ask("tenants", "list").stdout
    assert [line.split(",")[0] for line in listed.splitlines()] == ["acme: unreadable", "b: unreadable"]
    assert "its own are unreadable" in ask("tenants", "show", "acme").stdout
    mended = ask("tenants", "set", "acme", "--rpm", "5")
    assert mended.stdout == "acme: weight 1, 5 requests/min\n"
    assert "replaced what could not be read of tenant acme" in mended.stderr
    assert ask("tenants", "rm", "b").returncode == 0
    assert ask("tenants", "list").stdout == "acme: weight 1, 5 requests/min\n"
    assert "ab" * 6 + "  ?" in ask("keys", "list").stdout
    assert json.loads(ask("keys", "list", "--json").stdout)["unreadable"] == "its name is no text"
    assert "last key" in ask("keys", "revoke", "abab").stderr
    assert ask("keys", "revoke", "abab", "--open").stdout == f"revoked {'ab' * 6}\n"


@pytest.mark.parametrize("words", ["tenants list", "keys list", "tenants set acme --rpm 1"])
def test_a_key_of_another_type_is_named_with_what_to_do(ask: Command, redis_url: str, words: str) -> None:
    key = "keys:{sys}" if words.startswith("keys") else "tenants:{sys}"
    redis_command(redis_url, "SET", key, "stray")
    done = ask(*words.split())
    assert done.returncode == 1
    assert f"DEL {key}" in done.stderr


def test_a_key_stands_for_one_named_tenant(ask: Command) -> None:
    for tenant in ("*", "a b"):
        assert ask("keys", "create", tenant).returncode == 2
    assert ask("keys", "list").stdout == ""
