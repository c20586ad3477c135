"""A gateway's bounds as an operator sets them, on a real process; and the administrators' own key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
import redis

from headway.services.batch.place import FOLDER
from headway.services.errors import StartError
from headway.services.gateway_limits import GatewayLimits, check_origin, read_admin_key

if TYPE_CHECKING:
    from tests.conftest import StartRedis

KEY = "an-administrators-key-of-tests"


@contextmanager
def gateway(folder: Path, redis_url: str, *options: str, **environment: str) -> Generator[tuple[str, Path]]:
    """A running gateway: its address and its log."""
    log_path = folder / "gateway.log"
    line = [sys.executable, "-P", "-m", "headway.services.cli", "gateway", "--port", "0", *options]
    with log_path.open("ab") as log:
        process = subprocess.Popen(
            [*line, "--redis-url", redis_url, "--log-format", "json"],
            stdout=log,
            stderr=log,
            env=os.environ | environment,
        )
    try:
        yield _address(process, log_path), log_path
    finally:
        process.terminate()
        process.wait(timeout=20)


def _address(process: subprocess.Popen[bytes], log_path: Path) -> str:
    give_up = time.monotonic() + 30
    while time.monotonic() < give_up:
        for line in log_path.read_text().splitlines():
            if line.startswith("{") and (told := json.loads(line))["event"] == "listening":
                url: str = told["url"]
                return url
        assert process.poll() is None, log_path.read_text()
        time.sleep(0.05)
    raise AssertionError(log_path.read_text())


def test_an_operators_bounds_hold_and_its_key_is_in_no_log(tmp_path: Path, start_redis: StartRedis) -> None:
    options = ("--max-body-size", "2KiB", "--max-header-size", "4KiB", "--cors-origins", "https://a.example")
    server = start_redis("redis7")
    with gateway(tmp_path, server.url, *options, HEADWAY_ADMIN_KEY=KEY) as (url, log_path):
        with httpx.Client(base_url=url) as http:
            large = http.post("/v1/jobs", json={"model": "tiny", "prompt": "x" * 3000})
            assert (large.status_code, large.json()["error"]["code"]) == (413, "body_too_large")
            page = {"Origin": "https://a.example"}
            assert http.get("/", headers=page).headers["access-control-allow-origin"] == page["Origin"]
            admin = {"Authorization": f"Bearer {KEY}"}
            made = http.post("/admin/keys", json={"tenant": "acme"}, headers=admin)
            assert made.status_code == 201, made.text
            assert http.get("/admin/usage", headers=admin).status_code == 200
            assert http.get("/admin/usage", headers={"Authorization": "Bearer no"}).status_code == 403
            assert http.get("/v1/models", headers={"Authorization": "Bearer no"}).status_code == 401
            refused = http.get("/", headers={"X-Long": "y" * 5000})
            assert (refused.status_code, refused.json()["error"]["code"]) == (431, "headers_too_large")
            assert "4096 bytes" in refused.json()["error"]["message"]
        told = log_path.read_text()
    assert '"admin": "operator"' in told or '"admin":"operator"' in told
    assert KEY not in told
    assert made.json()["key"] not in told


def test_a_gateway_names_its_queue_where_files_lie_before_it_serves(
    tmp_path: Path, start_redis: StartRedis
) -> None:
    """So that no other queue's batch service takes what is uploaded for what a killed process left."""
    server = start_redis("redis7")
    with (
        gateway(tmp_path, server.url, "--files", str(tmp_path / "files")),
        redis.Redis.from_url(server.url) as raw,
    ):
        (name,) = (tmp_path / "files" / FOLDER).iterdir()
        assert name.name.encode() == raw.get("place:{batch}")
        assert raw.ttl("place:{batch}") == -1, "for good"


def test_a_gateway_with_a_key_that_anybody_may_guess_does_not_start(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("secret\n")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "headway.services.cli", "gateway", "--admin-key-file", str(file)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "6 characters" in done.stderr
    assert "secret\n" not in done.stderr


def test_an_administrators_key_comes_from_its_file_or_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f" {KEY}\n")
    assert read_admin_key(str(file), {"HEADWAY_ADMIN_KEY": "another"}) == KEY
    assert read_admin_key(None, {"HEADWAY_ADMIN_KEY": KEY}) == KEY
    assert read_admin_key(None, {"HEADWAY_ADMIN_KEY": ""}) == ""
    assert read_admin_key(None, {}) == ""
    with pytest.raises(StartError, match="24"):
        read_admin_key(None, {"HEADWAY_ADMIN_KEY": "short"})
    with pytest.raises(StartError, match="cannot be read"):
        read_admin_key(str(tmp_path / "none"), {})
    file.write_text("\n")
    with pytest.raises(StartError, match="empty"):
        read_admin_key(str(file), {"HEADWAY_ADMIN_KEY": KEY})


def test_what_is_no_origin_is_refused_where_somebody_reads_it() -> None:
    limits = GatewayLimits(cors_origins=check_origin("https://a.example, http://b:8080,*"))
    assert limits.origins == ("https://a.example", "http://b:8080", "*")
    for wrong in ("a.example", "https://a.example/", "ftp://a", "https://", "https://a b"):
        with pytest.raises(ValueError, match="origin"):
            check_origin(wrong)


def test_up_hands_every_bound_to_its_gateway() -> None:
    limits = GatewayLimits(1, 2, 3, "https://a.example", "/key")
    given = dict(limits.arguments())
    assert list(given.values()) == [1, 2, 3, "https://a.example", "/key"]
