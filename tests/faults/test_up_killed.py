"""Processes that are really killed, one kind after the other: nothing is lost, nothing is left running."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.services.up.headway_up import HeadwayUp, eventually, running_up

from headway.queueing.events import EndEvent, EndReason, TokenEvent
from headway.queueing.sync import SyncClient

SLOW = "scripted:ms_per_step=10"
ORPHAN_SECONDS = 2.0
"""``kill -9`` of ``headway up``: everything is gone within this time."""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def text_of(up: HeadwayUp, job_id: str) -> str:
    done = up.run("tail", job_id)
    assert done.returncode == 0, done.stderr
    return done.stdout.rstrip("\n")


def test_kill_of_up_leaves_nothing_running_and_its_queued_and_running_jobs_are_answered_by_the_next_one(
    home: Path,
) -> None:
    with running_up(home, "--model", SLOW) as first:
        expected = text_of(first, first.submit("drill", "--max-tokens", "150", "--seed", "1"))
        running = first.submit("drill", "--max-tokens", "150", "--seed", "1")
        queued = first.submit("drill", "--max-tokens", "30", "--seed", "2", "--model", "other")
        with SyncClient.connect(first.redis_url) as client:
            eventually("the job runs", lambda: client.status(running).committed_tokens > 20)
        first.kill()
        eventually("nothing is left", lambda: not first.left(), ORPHAN_SECONDS)
        assert first.status_json()[0] == 3

    with running_up(home, "--model", SLOW) as second:
        # Well within the 15 s of their leases: those of workers that died with the first one are ended.
        with SyncClient.connect(second.redis_url) as client:
            assert client.result(running, timeout_seconds=10).choices[0].text == expected
        assert second.stop() == 0

    # The queued one outlived a kill and an orderly stop.
    with running_up(home, "--model", SLOW, "--served-name", "other") as third:
        assert len(text_of(third, queued)) == 30


def test_kill_of_the_worker_mid_answer_continues_the_same_answer_without_gap_or_repeat(home: Path) -> None:
    with running_up(home, "--model", SLOW) as up:
        body = {"model": "scripted", "prompt": "drill", "max_tokens": 200, "seed": 7}
        calm = httpx.post(f"{up.url}/v1/completions", json=body, timeout=30).json()["choices"][0]["text"]
        with SyncClient.connect(up.redis_url) as client:
            job: dict[str, Any] = {"prompt": "drill", "sampling": {"max_tokens": 200, "seed": 7}}
            job_id = client.submit(model="scripted", **job).job_id
            seen: list[TokenEvent] = []
            victim = up.worker_pid
            for event in client.stream(job_id):
                if isinstance(event, EndEvent):
                    assert event.reason is EndReason.LENGTH
                    break
                seen.append(event)
                if event.cursor.tokens == 50:
                    os.kill(victim, signal.SIGKILL)
            assert client.status(job_id).attempts == 1
        assert up.worker_pid != victim
        assert [event.cursor.tokens for event in seen][-1] == 200
        steps = [len(event.token_ids) for event in seen]
        ends = [event.cursor.tokens for event in seen]
        assert ends == [sum(steps[: i + 1]) for i in range(len(steps))], "a gap or a repeat"
        assert "".join(event.text for event in seen) == calm
        assert "killed by SIGKILL" in up.output


def test_an_http_stream_survives_the_death_of_its_worker(home: Path) -> None:
    with running_up(home, "--model", SLOW, "--workers", "2") as up:
        body = {"model": "scripted", "prompt": "drill", "max_tokens": 150, "seed": 3}
        calm = httpx.post(f"{up.url}/v1/completions", json=body, timeout=30).json()["choices"][0]["text"]
        text, is_killed = "", False
        with httpx.stream(
            "POST", f"{up.url}/v1/completions", json={**body, "stream": True}, timeout=30
        ) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    chunk = json.loads(line.removeprefix("data: "))
                    text += chunk["choices"][0]["text"]
                    if len(text) == 40 and not is_killed:
                        kill_owner(up, f"scripted:0:{chunk['id'].removeprefix('cmpl-')}")
                        is_killed = True
        assert is_killed
        assert text == calm


def kill_owner(up: HeadwayUp, job_id: str) -> None:
    """SIGKILL the one worker of two that runs a job."""
    with SyncClient.connect(up.redis_url) as client:
        owner = client.status(job_id).worker
    (pid,) = [worker.pid for worker in up.status.workers if worker.id == owner]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def test_a_queued_job_survives_the_death_of_the_embedded_server(home: Path) -> None:
    with running_up(home) as up:
        job_id = up.submit("drill", "--max-tokens", "20", "--model", "other")
        server = up.status.redis.pid
        assert server is not None
        os.kill(server, signal.SIGKILL)
        eventually("a new server runs", lambda: up.status.redis.pid not in (None, server))
        eventually("all is ready again", up.is_ready)
        with SyncClient.connect(up.redis_url) as client:
            assert client.status(job_id).state == "queued"
        # And the processes found their way back: a new job is answered.
        assert len(text_of(up, up.submit("drill", "--max-tokens", "20"))) == 20


def test_a_killed_gateway_comes_back_on_the_same_port_and_refuses_nobody_meanwhile(home: Path) -> None:
    with running_up(home) as up:
        gateway, url = up.status.gateway.pid, up.url
        assert gateway is not None
        os.kill(gateway, signal.SIGKILL)
        eventually("its death is noticed", lambda: up.status.gateway.pid != gateway)
        body = {"model": "scripted", "prompt": "drill", "max_tokens": 5}
        reply = httpx.post(f"{url}/v1/completions", json=body, timeout=30)
        assert reply.status_code == 200
        eventually("the gateway is ready again", up.is_ready)
        assert up.url == url


def test_a_gateway_that_hangs_is_ended_and_started_again(home: Path) -> None:
    """Its process lives and its socket takes connections: only that nobody answers tells."""
    with running_up(home, "--model", SLOW) as up:
        hung = up.status.gateway.pid
        assert hung is not None
        job = up.submit("drill", "--max-tokens", "20")
        os.kill(hung, signal.SIGSTOP)
        eventually(
            "another gateway is ready", lambda: up.status.gateway.pid not in (None, hung) and up.is_ready()
        )
        assert "no answer for" in up.output
        answer = httpx.get(f"{up.url}/v1/jobs/{job}", timeout=10)
        assert answer.status_code == 200
        assert up.stop() == 0
