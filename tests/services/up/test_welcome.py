"""What is printed at the end of a start works as pasted."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.services.up.headway_up import HeadwayUp, eventually, running_up

from headway.services.listener import open_listener, url_of


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Generator[HeadwayUp]:
    # Short answers: the toy ends them by itself.
    with running_up(tmp_path_factory.mktemp("up"), "--model", "scripted:ends=1,ms_per_step=1") as running:
        eventually("all is printed", lambda: "Ctrl-C" in running.output)
        yield running


def printed(up: HeadwayUp, first: str, last: str) -> str:
    found = re.search(rf"^{first}.*?{last}$", up.output, re.MULTILINE | re.DOTALL)
    assert found is not None, up.output
    return found[0]


def test_the_curl_streams_an_answer(up: HeadwayUp, tmp_path: Path) -> None:
    command = printed(up, "curl", "}'")
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=30, check=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    texts = [json.loads(line[6:])["choices"][0]["delta"].get("content") or "" for line in lines[:-1]]
    assert "".join(texts)
    assert shlex.split(command)[0] == "curl"


@pytest.mark.parametrize("how", [["-"], ["-i"]], ids=["as a file", "typed into an interpreter"])
def test_the_python_snippet_prints_an_answer(up: HeadwayUp, how: list[str]) -> None:
    snippet = printed(up, "from openai", "flush=True\\)")
    done = subprocess.run(
        [sys.executable, *how],
        input=snippet + "\n\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")},
    )
    assert "Error" not in done.stderr
    assert re.search(r"[a-z ]+", done.stdout)


def test_the_queue_line_prints_an_answer(up: HeadwayUp, tmp_path: Path) -> None:
    line = next(line for line in up.output.splitlines() if " tail " in line)
    # The toy model may end with its first token: one answer in 28 is empty.
    answers = [
        subprocess.run(
            ["sh", "-c", line], capture_output=True, text=True, timeout=30, check=True, cwd=up.home
        ).stdout
        for _ in range(4)
    ]
    assert any(answer.strip() for answer in answers)


def test_readiness_of_each_is_told_with_its_time(up: HeadwayUp) -> None:
    for name in ("redis", "gateway", "worker"):
        assert re.search(rf"^  {name} +ready +[0-9.]+ s ", up.output, re.MULTILINE)


@pytest.mark.parametrize(
    ("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::1", "[::1]")]
)
def test_the_url_is_one_that_a_local_client_reaches(host: str, shown: str) -> None:
    if host == "::1" and not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with open_listener(host, 0) as listener:
        assert url_of(listener) == f"http://{shown}:{listener.getsockname()[1]}"
