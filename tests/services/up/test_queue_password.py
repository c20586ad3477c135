"""The password of the queue's server: of use to its owner's scripts, and nowhere for others to read."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis
from tests.conftest import StartRedis
from tests.services.up.headway_up import running_up

from headway.services.settings import GatewaySettings, mask_password
from headway.services.settings import shown as settings_shown

SECRET = "s3cret"


def command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_scripts_get_a_usable_url_and_nobody_else_reads_its_password(
    tmp_path: Path, start_redis: StartRedis
) -> None:
    server = start_redis("valkey9", "--user", "headway", "on", f">{SECRET}", "~*", "&*", "+@all")
    url = f"unix://headway:{SECRET}@{server.socket}"
    state = tmp_path / "state"
    state.mkdir(mode=0o755)  # somebody's own folder, open to others
    with running_up(tmp_path, state_dir=state, env={"HEADWAY_REDIS_URL": url}) as up:
        up.run("tail", up.submit("drill", "--max-tokens", "3"))
        _, fields = up.status_json()
        assert fields["redis"]["url"] == url
        with redis.Redis.from_url(fields["redis"]["url"]) as client:
            assert client.acl_whoami() == "headway"
        table = up.run("status").stdout
        assert "headway:***@" in table
        assert SECRET not in table
        pids = [mark.pid for mark in up.marks if mark.lives]
        assert len(pids) == 3
        assert [pid for pid in pids if SECRET.encode() in command_line(pid)] == []
        assert SECRET not in up.output
        holders = [
            path for path in state.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()
        ]
        assert [(path.name, path.stat().st_mode & 0o077) for path in holders] == [("up.json", 0)]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://:p@h/0", "redis://:***@h/0"),
        ("rediss://u:p:@q@h/0?db=1", "rediss://u:***@h/0?db=1"),
        ("unix:///x.sock?password=p@q&db=1", "unix:///x.sock?password=***&db=1"),
        ("redis://h/0?username=u&password=p", "redis://h/0?username=u&password=***"),
        ("redis://u@h/0", "redis://u@h/0"),
    ],
)
def test_a_password_is_masked_wherever_a_url_may_have_it(url: str, shown: str) -> None:
    assert mask_password(url) == shown


def test_no_url_of_a_process_shows_its_password_in_the_log() -> None:
    secret = "s3cret"
    settings = GatewaySettings(
        redis_url=f"redis://:{secret}@host",
        otlp_url=f"https://user:{secret}@collector:4318",
        files=f"sftp://user:{secret}@host/files",
    )
    assert secret not in str(settings_shown(settings))
