"""tenants.toml: what it may hold, what is said of a mistake, and that changes are taken over at once."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headway.queueing.errors import QueueUnavailableError
from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.messages import Priority
from headway.queueing.tenant_file import read_tenant_file
from headway.queueing.tenants import TenantLimits
from headway.services.errors import UsageError
from headway.services.tenants_file import apply_tenants_file, check_tenants_file, watch_tenants_file

ROOT = Path(__file__).resolve().parents[3]


def test_the_example_is_valid_and_shows_every_field() -> None:
    text = (ROOT / "docs" / "tenants.toml").read_text(encoding="utf-8")
    tenants = read_tenant_file(text).tenants
    assert set(tenants["acme"].fields()) == set(TenantLimits.model_fields)
    assert tenants["night.batch"].classes == (Priority.BATCH,)
    assert tenants["*"].rpm == 20


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            '[acme]\nweight = 2\n\n# a comment\nrpm = "50"\n',
            "tenants.toml:5: acme: rpm: should be a valid integer",
        ),
        ("[a]\nrpm = 1\n[b]\nrpm = 0\n", "tenants.toml:4: b: rpm: should be greater"),
        ("[acme]\nrmp = 5\n", "tenants.toml:2: acme: there is no 'rmp'; there are weight, classes"),
        ("[acme]\nrpm = 5\nrpm = 6\n", "not valid TOML: Cannot overwrite a value (at line 3"),
        ("[acme\n", "not valid TOML"),
        ("rpm = 5\n", "tenants.toml:1: 'rpm' stands outside of any table"),
        ("[a.b]\nrpm = 5\n", 'is written ["a.b"]'),
        ('["a b"]\nrpm = 5\n', "tenants.toml:1: tenant 'a b'"),
        ('["*"]\nweight = 2\n', "tenants.toml:2: *: weight"),
        ("[acme]\nclasses = []\n", "tenants.toml:2: acme: classes"),
        ("[acme]\ndeadline_seconds = inf\n", "tenants.toml:2: acme: deadline_seconds"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_field(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as refused:
        check_tenants_file(file)
    assert told in str(refused.value)


def test_a_file_that_cannot_be_read_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        check_tenants_file(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xff")
    with pytest.raises(UsageError, match="not UTF-8"):
        check_tenants_file(tmp_path / "latin.toml")


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.02)


async def test_a_change_is_taken_over_a_mistake_is_told_and_a_lost_file_changes_nothing(
    tmp_path: Path,
) -> None:
    file, queue = tmp_path / "tenants.toml", MemoryQueue()
    file.write_text("[a]\nrpm = 1\n")
    await apply_tenants_file(queue, check_tenants_file(file))

    async def limits() -> dict[str, int | None]:
        return {name: each.rpm for name, each in (await queue.tenant_store.book()).tenants.items()}

    with capture_logs() as logs:
        watching = asyncio.create_task(watch_tenants_file(queue, file))
        await asyncio.sleep(0)  # it has seen the file as it is
        replacement = tmp_path / "new"  # as editors and mounted volumes do it
        replacement.write_text("[b]\nrpm = 2\n")
        os.replace(replacement, file)
        await until(lambda: any(line["event"] == "tenants_applied" for line in logs))
        assert await limits() == {"b": 2}
        file.write_text("[b]\nrpm = oh\n")
        await until(lambda: any(line["event"] == "tenants_file_refused" for line in logs))
        file.unlink()
        await until(lambda: any(line["event"] == "tenants_file_gone" for line in logs))
        assert await limits() == {"b": 2}
        file.write_text("[c]\nrpm = 3\n")
        await until(lambda: logs[-1].get("changed") == ("b", "c"))
        assert await limits() == {"c": 3}
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


async def test_a_change_during_an_outage_is_applied_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, queue = tmp_path / "tenants.toml", MemoryQueue()
    file.write_text("")
    real, failures = queue.tenant_store.apply, [QueueUnavailableError("away")] * 2

    async def apply(*arguments: object) -> tuple[str, ...]:
        if failures:
            raise failures.pop()
        return await real(*arguments)  # type: ignore[arg-type]  # passed on as they came

    monkeypatch.setattr(queue.tenant_store, "apply", apply)
    monkeypatch.setattr("headway.services.tenants_file.SLOW_LOOK_SECONDS", 0.01)
    watching = asyncio.create_task(watch_tenants_file(queue, file))
    await asyncio.sleep(0)
    file.write_text("[a]\nrpm = 1\n")
    await until(lambda: not failures)
    async with asyncio.timeout(10):
        while not (await queue.tenant_store.book()).tenants:
            await asyncio.sleep(0.02)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
