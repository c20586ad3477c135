"""Ctrl-C once: in order, and open answers finish. Ctrl-C twice: at once, and still nothing is lost."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import httpx
from tests.services.up.headway_up import eventually, running_up

from headway.queueing.sync import SyncClient


def test_ctrl_c_stops_gateway_then_workers_then_server_and_an_open_answer_finishes(tmp_path: Path) -> None:
    with running_up(tmp_path, "--model", "scripted:ms_per_step=10") as up:
        body = {"model": "scripted", "prompt": "drill", "max_tokens": 120, "stream": True}
        lines: list[str] = []
        began = threading.Event()

        def read() -> None:
            with httpx.stream("POST", f"{up.url}/v1/completions", json=body, timeout=30) as reply:
                for line in reply.iter_lines():
                    lines.append(line)
                    began.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert began.wait(10)
        up.interrupt()
        assert up.process.wait(timeout=30) == 0
        reader.join(timeout=10)
        assert [line for line in lines if line][-1] == "data: [DONE]"
        texts = [json.loads(line[6:])["choices"][0]["text"] for line in lines if line.startswith("data: {")]
        assert len("".join(texts)) == 120
        stops = [up.output.index(f"{name:<10}stopped") for name in ("gateway", "worker", "redis")]
        assert stops == sorted(stops)
        assert not up.left()
        assert up.status_json()[0] == 3


def test_a_second_ctrl_c_stops_at_once_and_the_next_up_goes_on_with_the_job(tmp_path: Path) -> None:
    with running_up(tmp_path, "--model", "scripted:ms_per_step=10", "--drain-seconds", "60") as up:
        job_id = up.submit("drill", "--max-tokens", "4000")
        with SyncClient.connect(up.redis_url) as client:
            eventually("the job runs", lambda: client.status(job_id).committed_tokens > 10)
        up.interrupt()
        eventually("the orderly stop has begun", lambda: "gateway   stopped" in up.output)
        assert up.process.poll() is None, "the worker drains for up to a minute"
        up.interrupt()
        # By the signal itself, so that a shell sees what happened.
        assert up.process.wait(timeout=5) == -2
        eventually("nothing is left", lambda: not up.left(), 2.0)

    with (
        running_up(tmp_path, "--model", "scripted:ms_per_step=10") as again,
        SyncClient.connect(again.redis_url) as client,
    ):
        before = client.status(job_id).committed_tokens
        eventually("the answer goes on", lambda: client.status(job_id).committed_tokens > before, 8.0)
        client.cancel(job_id)


def test_a_stop_while_everything_still_starts_is_orderly_too(tmp_path: Path) -> None:
    from tests.services.up.headway_up import HeadwayUp

    up = HeadwayUp.start(tmp_path)
    try:
        eventually("the server runs", lambda: "redis" in (up.output if up.output_path.exists() else ""))
        up.interrupt()
        assert up.process.wait(timeout=20) == 0
        assert not up.left()
    finally:
        up.clean_up()
