"""``headway workers`` and ``top``: what they tell of the fleet, with 100 tenants too; leaving the screen."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest
import redis
from tests.services.jobs.conftest import card, dead, values
from tests.services.up.headway_up import HEADWAY, clean_environment

if TYPE_CHECKING:
    from pathlib import Path

    from tests.contract.conftest import Bench
    from tests.services.jobs.conftest import Play
    from tests.services.up.conftest import Command


async def two_workers(bench: Bench) -> None:
    await bench.queue.heartbeat(card("w2", state="draining", running=0, waiting=0), ttl_seconds=60)


async def busy(bench: Bench) -> None:
    """acme (weight 3) and zeta wait, acme was served 3 tokens and zeta 1."""
    await bench.queue.set_weights("org/tiny", {"acme": 3})
    await bench.submit("e", tenant="acme")
    await bench.finish(await bench.claim_one(), bench.token(1), bench.token(2), bench.token(3))
    await bench.submit("r", tenant="zeta")
    await bench.emit(await bench.claim_one(), bench.token(1))
    await dead(bench, "d", tenant="late")
    for n in range(4):
        await bench.submit(f"a{n}", tenant="acme", priority="interactive")
    await bench.submit("z", tenant="zeta", priority="batch")


def test_workers_are_listed_with_headings_and_figures(ask: Command, play: Play) -> None:
    assert ask("workers").stdout == "no worker is alive\n"
    assert ask("workers", "--json").stdout == ""
    play(two_workers)
    lines = ask("workers").stdout.splitlines()
    assert lines[0].split() == [
        *("WORKER", "MODEL", "STATE", "RUNNING", "WAITING"),
        *("KV", "TOKENS/S", "STEP", "HEARD", "VERSION"),
    ]
    first = lines[1].split()
    assert first[:8] == ["w1", "org/tiny", "ready", "1", "2", "50%", "81.5", "0.2s"]
    assert first[9] == "0.1.0"
    assert lines[2].split()[2] == "draining"
    found = values(ask("workers", "--json"))
    assert [each["worker_id"] for each in found] == ["w1", "w2"]
    assert 0 <= found[0]["heartbeat_age_seconds"] < 30


@pytest.mark.parametrize("width", [80, 160])
def test_long_worker_names_keep_their_ends_on_a_narrow_terminal(ask: Command, play: Play, width: int) -> None:
    async def long_name(bench: Bench) -> None:
        name = "w-a-host-with-a-long-name.example.com-12345-abcdef"
        await bench.queue.heartbeat(card(name, model="org/a-model-with-a-long-name"), ttl_seconds=60)

    play(long_name)
    lines = ask("workers", COLUMNS=str(width)).stdout.splitlines()
    assert max(map(len, lines)) <= width
    assert lines[1].split()[0].endswith("ef")


def test_a_frame_has_the_queue_by_class_and_tenant_with_shares_beside_weights(
    ask: Command, play: Play
) -> None:
    play(busy)
    (found,) = values(ask("top", "--once", "--json"))
    assert set(found) == {"at_ms", "models", "tenants", "workers"}
    (lane,) = found["models"]
    assert lane["waiting"] == {"interactive": 4, "standard": 0, "batch": 1}
    assert (lane["running"], lane["dead_letters"], lane["tokens_per_second"]) == (1, 1, 81.5)
    assert abs(found["at_ms"] - lane["oldest_ms"]) < 30_000
    tenants = {each["tenant"]: each for each in found["tenants"]}
    assert list(tenants) == ["acme", "zeta", "late"]
    assert (tenants["acme"]["weight"], tenants["acme"]["due"], tenants["acme"]["share"]) == (3, 0.75, 0.6)
    assert (tenants["zeta"]["due"], tenants["zeta"]["running"], tenants["zeta"]["tokens"]) == (0.25, 1, 1)
    assert (tenants["late"]["due"], tenants["late"]["share"]) == (None, 0.2)

    text = ask("top", "--once").stdout
    assert "5 waiting  1 running  81.5 tokens/s  1 dead letter\n" in text
    rows = [line.split() for line in text.splitlines()]
    headings = [row[0] for row in rows if row and row[0].isupper()]
    assert headings == ["MODEL", "TENANT", "WORKER"]
    (acme,) = (row for row in rows if row[:1] == ["acme"])
    assert acme[:7] == ["acme", "3", "75%", "60%", "0", "4", "0"]


def test_a_frame_of_an_empty_queue_says_so(ask: Command) -> None:
    text = ask("top", "--once").stdout
    assert "0 waiting" in text
    assert "no worker has served a model here yet" in text
    assert "no worker is alive" in text


@pytest.mark.parametrize("width", [80, 160])
def test_a_frame_is_readable_with_100_tenants(ask: Command, play: Play, width: int) -> None:
    async def many(bench: Bench) -> None:
        for n in range(100):
            await bench.submit(tenant=f"tenant-{n:03}@example.com")
        for _ in range(3):
            await bench.submit(tenant="loud")

    play(many)
    lines = ask("top", "--once", COLUMNS=str(width)).stdout.splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if line.startswith("tenant-0")]
    first = next(at for at, line in enumerate(lines) if line.startswith("TENANT"))
    assert lines[first + 1].startswith("loud ")
    (others,) = (line for line in lines if line.startswith("and "))
    assert others.startswith(f"and {100 - len(rows)} more: {100 - len(rows)} waiting")


@pytest.mark.parametrize(("options", "told"), [((), "top --once"), (("--json",), "--json goes with --once")])
def test_without_a_terminal_it_says_what_to_type(ask: Command, options: tuple[str, ...], told: str) -> None:
    done = ask("top", *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr


class Screen:
    """``headway top`` on a terminal of the test's own."""

    def __init__(self, redis_url: str, home: Path, lines: int, columns: int) -> None:
        self.master, slave = pty.openpty()
        self.before: list[Any] = _settings(slave)
        self.slave = slave
        env = clean_environment(home, {"COLUMNS": str(columns), "LINES": str(lines), "TERM": "xterm"})
        self.process = subprocess.Popen(
            [*HEADWAY, "top", "--redis-url", redis_url],
            stdin=slave, stdout=slave, stderr=slave, env=env, cwd=home, start_new_session=True,
        )  # fmt: skip
        self.text = ""

    def read_until(self, wanted: str, *, times: int = 1) -> None:
        until = time.monotonic() + 30
        while self.text.count(wanted) < times:
            assert time.monotonic() < until, self.text
            if select.select([self.master], [], [], 0.2)[0]:
                self.text += os.read(self.master, 65536).decode(errors="replace")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.master)
        os.close(self.slave)


def _settings(terminal: int) -> list[Any]:
    import termios

    return termios.tcgetattr(terminal)


@pytest.mark.parametrize("how", ["q", "SIGINT"])
def test_the_live_view_draws_again_and_is_left_by_q_or_ctrl_c(
    play: Play, redis_url: str, tmp_path: Path, how: str
) -> None:
    play(busy)
    screen = Screen(redis_url, tmp_path, 24, 80)
    try:
        screen.read_until("TENANT", times=2)
        frames = screen.text.split("\033[H")[1:]
        assert max(frame.count("\n") for frame in frames) < 24
        if how == "q":
            os.write(screen.master, b"q")
        else:
            os.kill(screen.process.pid, signal.SIGINT)
        screen.read_until("\033[?1049l")
        assert screen.process.wait(timeout=20) == 0
        assert _settings(screen.slave) == screen.before
        assert "Traceback" not in screen.text
    finally:
        screen.close()


@pytest.mark.parametrize("more", [[], ["--json"]])
@pytest.mark.parametrize("kind", ["lease", "lane", "rate"])
def test_a_key_of_another_type_is_named_with_what_to_do(
    ask: Command, play: Play, redis_url: str, kind: str, more: list[str]
) -> None:
    play(two_workers)
    key = f"{kind}:{{org--tiny:0}}"
    with redis.Redis.from_url(redis_url) as raw:
        raw.delete(key)
        raw.rpush(key, "garbage")
    done = ask("top", "--once", *more)
    assert done.returncode == 1
    assert f"the key {key} has another type" in done.stderr
    assert "DEL" in done.stderr
    assert "Traceback" not in done.stderr
