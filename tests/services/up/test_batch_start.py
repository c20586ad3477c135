"""The batch service starts behind everything else, is called ready only when it is, and ends nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import re
from pathlib import Path

import httpx
from tests.services.up.headway_up import eventually, running_up

from headway.services.readiness import ready_pipe, tell_ready

LINE = {
    "custom_id": "1",
    "method": "POST",
    "url": "/v1/completions",
    "body": {"model": "scripted", "prompt": "drill", "max_tokens": 3},
}


async def test_a_child_is_heard_when_it_says_so_and_not_when_it_only_ends() -> None:
    heard: list[str] = []
    with ready_pipe(lambda: heard.append("ended")):
        pass
    with ready_pipe(lambda: heard.append("said")) as descriptor:
        tell_ready(os.dup(descriptor))
    async with asyncio.timeout(10):
        while not heard:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.01)
    assert heard == ["said"]


def test_a_batch_that_is_posted_before_its_service_is_ready_waits_for_it(tmp_path: Path) -> None:
    with running_up(tmp_path, "--batch") as up, httpx.Client(base_url=up.url, timeout=30) as http:
        file = http.post(
            "/v1/files", data={"purpose": "batch"}, files={"file": ("in.jsonl", json.dumps(LINE).encode())}
        ).json()
        work = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        batch = http.post("/v1/batches", json=work).json()
        assert up.status.batch is not None
        assert up.status.batch.state == "starting", "the rest is ready before it"
        eventually("it is ready", lambda: up.status.batch is not None and up.status.batch.state == "ready")
        assert re.search(r"Ask it something.*^  batch +ready ", up.output, re.MULTILINE | re.DOTALL)
        eventually("done", lambda: http.get(f"/v1/batches/{batch['id']}").json()["status"] == "completed")
