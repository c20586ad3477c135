"""The whole path with the real model: what `make up` starts answers, and a killed worker changes no word."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.conftest import missing
from tests.services.up.headway_up import HeadwayUp, running_up

from headway.engine.errors import ModelError
from headway.engine.model_source import resolve_model

# float32: in bfloat16 a resumed answer's recomputed context may round a near tie to the other side.
ARGUMENTS = ("--model", "smollm2-135m", "--dtype", "float32", "--kv-cache", "64MiB", "--threads", "2")
ASKED: dict[str, Any] = {
    "model": "smollm2-135m",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "temperature": 0,
    "max_tokens": 100,
    "ignore_eos": True,
}


@pytest.mark.timeout(180)
def test_the_real_model_answers_and_goes_on_with_the_same_words_after_its_worker_is_killed(
    tmp_path: Path,
) -> None:
    try:
        resolve_model("smollm2-135m")
    except ModelError:
        missing("the model smollm2-135m")
    with running_up(tmp_path, *ARGUMENTS) as up:
        calm = httpx.post(f"{up.url}/v1/chat/completions", json=ASKED, timeout=60).json()
        text = calm["choices"][0]["message"]["content"]
        assert "Paris" in text
        assert calm["usage"]["completion_tokens"] == 100
        assert streamed_over_a_kill(up) == text


def streamed_over_a_kill(up: HeadwayUp) -> str:
    """The same answer as a stream, with SIGKILL for its worker after the first words."""
    text, victim = "", up.worker_pid
    asked = {**ASKED, "stream": True}
    with httpx.stream("POST", f"{up.url}/v1/chat/completions", json=asked, timeout=90) as reply:
        job_id = reply.headers["x-headway-job-id"]
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                text += json.loads(line.removeprefix("data: "))["choices"][0]["delta"].get("content", "")
                if len(text) > 20 and victim:
                    os.kill(victim, signal.SIGKILL)
                    victim = 0
    job = httpx.get(f"{up.url}/v1/jobs/{job_id}", timeout=10).json()
    assert job["attempts"] == 1, "the answer had ended before its worker was killed"
    return text
