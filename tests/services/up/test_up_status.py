"""``headway status``: the JSON that scripts rely on, true even when nobody keeps its file up to date."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.services.up.conftest import Command
from tests.services.up.headway_up import HeadwayUp, clean_environment, headway, running_up

from headway.services.process import ProcessMark
from headway.services.state import RunningBatch, RunningPart, RunningWorker, StateDir, UpState
from headway.services.status import status_of

NOBODY = "redis://127.0.0.1:1/0"
NOTHING = {
    "ready": False,
    "gateway": {"pid": None, "url": None},
    "redis": {"pid": None, "url": None},
    "workers": [],
    "batch": None,
}


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Generator[HeadwayUp]:
    with running_up(tmp_path_factory.mktemp("up"), "--workers", "2") as running:
        yield running


def own_mark() -> ProcessMark:
    mark = ProcessMark.of(os.getpid())
    assert mark is not None
    return mark


def test_json_names_every_process_with_pid_and_url(up: HeadwayUp) -> None:
    code, fields = up.status_json()
    assert code == 0
    assert list(fields) == ["ready", "gateway", "redis", "workers", "batch"]
    assert fields["ready"] is True
    assert fields["gateway"] == {"pid": up.status.gateway.pid, "url": up.url}
    assert fields["redis"] == {"pid": up.status.redis.pid, "url": up.redis_url}
    assert [list(worker) for worker in fields["workers"]] == [["id", "pid", "model", "state"]] * 2
    for worker in fields["workers"]:
        assert worker["id"].startswith("w-")
        assert f"-{worker['pid']}-" in worker["id"]
        assert (worker["model"], worker["state"]) == ("scripted", "ready")
    pids = {fields["gateway"]["pid"], fields["redis"]["pid"], *(w["pid"] for w in fields["workers"])}
    assert len(pids) == 4
    for pid in pids:
        os.kill(pid, 0)


def test_the_table_says_the_same_for_people(up: HeadwayUp) -> None:
    done = up.run("status")
    assert done.returncode == 0
    assert done.stdout.startswith("ready\n")
    assert done.stdout.splitlines()[2].split() == ["NAME", "PID", "STATE", "MODEL", "URL"]
    assert up.url in done.stdout


def test_a_fleet_is_read_from_its_server_s_registry(up: HeadwayUp, tmp_path: Path) -> None:
    done = headway("status", "--json", "--redis-url", up.redis_url, home=tmp_path)
    fields = json.loads(done.stdout)
    assert done.returncode == 0
    assert fields["redis"] == {"pid": None, "url": up.redis_url}
    assert {worker["pid"] for worker in fields["workers"]} == {w.pid for w in up.status.workers}


def test_where_nothing_runs_all_is_null_and_the_exit_code_is_3(command: Command) -> None:
    done = command("status", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (3, NOTHING)
    done = command("status")
    assert done.returncode == 3
    assert re.fullmatch(
        r"nothing runs in .+ \(start it: headway up; or name its --state-dir\)\n", done.stdout
    )


def test_a_server_that_is_away_is_not_reachable(command: Command) -> None:
    done = command("status", "--json", "--redis-url", NOBODY)
    assert done.returncode == 3
    assert "no Redis or Valkey answers" in done.stderr


def state_of(
    up: ProcessMark, redis: ProcessMark | None, worker: ProcessMark | None, batch: RunningBatch | None = None
) -> UpState:
    return UpState(
        up=up,
        started_unix=0,
        model="m",
        ready=True,
        gateway=RunningPart(own_mark(), "http://127.0.0.1:1"),
        redis=RunningPart(redis, "unix:///x"),
        is_redis_ours=True,
        workers=(RunningWorker("w-1", worker, "m", "ready"),),
        batch=batch,
    )


def test_a_state_file_of_a_dead_up_counts_for_nothing(tmp_path: Path) -> None:
    """The id lives, but it belongs to another process by now."""
    folder = StateDir(tmp_path / "state")
    folder.prepare()
    stale = ProcessMark(own_mark().pid, own_mark().start_ticks - 1)
    folder.write(state_of(stale, own_mark(), own_mark()))
    done = headway("status", "--json", "--state-dir", str(folder.root), home=tmp_path)
    assert (done.returncode, json.loads(done.stdout)) == (3, NOTHING)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"up": null}', "\x00\xff"])
def test_a_damaged_state_file_counts_for_nothing(tmp_path: Path, text: str) -> None:
    folder = StateDir(tmp_path)
    folder.state_file.write_bytes(text.encode("latin-1"))
    assert folder.read_live() is None


def test_the_state_file_comes_back_as_it_was_written_and_is_private(tmp_path: Path) -> None:
    folder = StateDir(tmp_path)
    for batch in (None, RunningBatch(None, "restarting"), RunningBatch(own_mark(), "ready")):
        state = state_of(own_mark(), None, own_mark(), batch)
        folder.write(state)
        assert folder.read_live() == state
    assert folder.state_file.stat().st_mode & 0o077 == 0


def test_a_dead_part_is_shown_as_null_whatever_the_file_claims() -> None:
    dead = ProcessMark(own_mark().pid, 1)
    found = status_of(state_of(own_mark(), dead, own_mark()))
    assert (found.ready, found.redis.pid, found.redis.url) == (False, None, None)
    found = status_of(state_of(own_mark(), own_mark(), dead))
    assert (found.ready, found.workers[0].pid, found.workers[0].state) == (False, None, "restarting")
    assert status_of(state_of(own_mark(), own_mark(), own_mark())).ready


def test_the_batch_service_is_listed_where_it_is_part_of_up() -> None:
    alive = status_of(state_of(own_mark(), own_mark(), own_mark(), RunningBatch(own_mark(), "ready")))
    assert alive.to_json()["batch"] == {"pid": os.getpid(), "state": "ready"}
    assert any(line.split()[:3] == ["batch", str(os.getpid()), "ready"] for line in alive.table())
    begun = status_of(state_of(own_mark(), own_mark(), own_mark(), RunningBatch(None, "starting")))
    assert begun.to_json()["batch"] == {"pid": None, "state": "starting"}
    assert begun.ready
    dead = status_of(state_of(own_mark(), own_mark(), own_mark(), RunningBatch(ProcessMark(1, 1), "ready")))
    assert dead.batch is not None
    assert (dead.batch.pid, dead.batch.state, dead.ready) == (None, "restarting", True), "jobs are answered"


def test_submit_prints_the_id_alone_and_tail_the_text_alone(up: HeadwayUp) -> None:
    done = up.run("submit", "drill", "--max-tokens", "12", "--tenant", "acme", "--priority", "batch")
    assert (done.returncode, done.stderr) == (0, "")
    (job_id,) = done.stdout.split()
    done = up.run("tail", job_id)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout) == 12 + len("\n")


def test_tail_json_prints_one_event_a_line_up_to_the_end(up: HeadwayUp, command: Command) -> None:
    here = {"HEADWAY_STATE_DIR": str(up.state_dir)}
    job_id = command(
        "submit", "drill", "--raw", "--max-tokens", "5", "--deadline", "30s", **here
    ).stdout.strip()
    events = [json.loads(line) for line in command("tail", job_id, "--json", **here).stdout.splitlines()]
    assert [event["event"] for event in events[-2:]] == ["tokens", "end"]
    assert events[-1]["reason"] == "length"
    assert events[-1]["cursor"] == "5-1"
    assert sum(len(event["token_ids"]) for event in events[:-1]) == 5


def test_submit_passes_on_what_a_late_job_wants_and_refuses_half(up: HeadwayUp, command: Command) -> None:
    here = {"HEADWAY_STATE_DIR": str(up.state_dir)}
    wish = ("submit", "drill", "--max-tokens", "3", "--deadline", "30s", "--demotable")
    job_id = command(*wish, "--ttft", "2s", "--tpot", "100ms", **here).stdout.strip()
    assert command("tail", job_id, **here).returncode == 0
    for options, told in (("--demotable", "--deadline"), ("--ttft 1s", "--tpot")):
        refused = command("submit", "drill", *options.split(), **here)
        assert refused.returncode == 2
        assert told in refused.stderr


def test_the_prompt_may_come_from_standard_input(up: HeadwayUp, command: Command) -> None:
    here = {"HEADWAY_STATE_DIR": str(up.state_dir)}
    typed = command("submit", "drill", "--raw", "--max-tokens", "9", "--seed", "1", **here).stdout.strip()
    piped = command(
        "submit", "-", "--raw", "--max-tokens", "9", "--seed", "1", stdin="drill", **here
    ).stdout.strip()
    assert typed != piped
    assert command("tail", typed, **here).stdout == command("tail", piped, **here).stdout


def test_the_model_of_up_in_the_environment_names_the_served_one(up: HeadwayUp, command: Command) -> None:
    here = {"HEADWAY_STATE_DIR": str(up.state_dir)}
    for model in ("/models/scripted.gguf", "scripted:ms_per_step=5"):
        assert command("submit", "drill", "--max-tokens", "1", **here, HEADWAY_MODEL=model).returncode == 0


def test_the_same_idempotency_key_gives_the_same_job(up: HeadwayUp, command: Command) -> None:
    once = ("submit", "drill", "--max-tokens", "3", "--idempotency-key", "k1", "--redis-url", up.redis_url)
    ids = {command(*once, "--model", "scripted").stdout for _ in range(2)}
    assert len(ids) == 1


def test_a_cancelled_job_ends_its_tail_with_1_and_the_reason(up: HeadwayUp, command: Command) -> None:
    here = {"HEADWAY_REDIS_URL": up.redis_url}
    done = command("submit", "drill", "--model", "served-by-nobody", **here)
    assert "no worker has served 'served-by-nobody' yet" in done.stderr
    assert "scripted" in done.stderr
    job_id = done.stdout.strip()
    done = command("cancel", job_id, **here)
    assert (done.returncode, done.stdout) == (0, "queued\n")
    done = command("tail", job_id, **here)
    assert done.returncode == 1
    assert "cancelled" in done.stderr


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("tail scripted:0:01JUNKNOWN", 1, "no job"),
        ("cancel scripted:0:01JUNKNOWN", 1, "no job"),
        ("submit x --tenant not/a/tenant", 2, "tenant"),
        ("submit x --deadline soon", 2, "30s"),
        ("submit x --priority urgent", 2, "interactive"),
        ("submit x --raw --system y", 2, "--chat"),
        ("submit x --temperature 9", 2, "temperature"),
        ("submit", 2, "prompt"),
        ("sbumit x", 2, "submit"),
        ("tail m:0:01J --redis-url http://nope", 2, "redis://"),
        (f"tail m:0:01J --redis-url {NOBODY}", 3, "no Redis or Valkey answers"),
        (f"cancel m:0:01J --redis-url {NOBODY}", 3, "no Redis or Valkey answers"),
        (f"submit x --model m --redis-url {NOBODY}", 3, "no Redis or Valkey answers"),
    ],
)
def test_what_cannot_be_done_says_so_with_its_exit_code(
    up: HeadwayUp, command: Command, line: str, code: int, said: str
) -> None:
    done = command(*line.split(), HEADWAY_STATE_DIR=str(up.state_dir))
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("line", ["submit x", "tail scripted:0:01J", "cancel scripted:0:01J"])
def test_without_a_server_commands_say_what_to_start(command: Command, line: str) -> None:
    done = command(*line.split())
    assert done.returncode == 3
    assert "headway up" in done.stderr


def test_version_and_schema_need_no_server(command: Command) -> None:
    assert command("--version").stdout.startswith("headway ")
    schema = json.loads(command("schema").stdout)
    assert {"model", "messages", "prompt", "sampling"} <= schema["properties"].keys()


def test_light_commands_import_neither_torch_nor_the_server_side(tmp_path: Path) -> None:
    script = (
        "import sys; sys.argv = ['headway', 'status']\n"
        "from headway.services.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'redis', 'fastapi', 'structlog', 'rich'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=clean_environment(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"
