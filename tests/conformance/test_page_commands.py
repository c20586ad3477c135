"""Every curl of every page is answered as the page says: none is refused by a running service."""

from __future__ import annotations

import json
import re
from pathlib import Path
from string import Template
from typing import Final

import httpx
import pytest
from tests.conformance.service import OPERATOR, Service
from tests.gateway.scripted_worker import MODEL
from tests.ops.shell_blocks import Command, commands_of

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "ops/docker/README.md"]
COMMANDS: Final = [command for page in PAGES for command in commands_of(page, "curl")]
# What curl is told about its own ways; -d takes a value and is read on its own.
FLAGS: Final = frozenset({"-N", "-i", "-s"})
FORM: Final = "application/x-www-form-urlencoded"
"""What curl calls a body that it is given no name for."""


def test_the_pages_have_commands_to_try() -> None:
    assert len(COMMANDS) >= 15


@pytest.fixture(scope="module")
def job_id(service: Service) -> str:
    """A job that is there to be followed, read and cancelled."""
    headers = {"Authorization": f"Bearer {service.key}"}
    body = {"model": MODEL, "prompt": "say a long story of a night train"}
    made = httpx.post(f"{service.url}/v1/jobs", json=body, headers=headers, timeout=10)
    made.raise_for_status()
    found: str = made.json()["id"]
    service.until_ended(found)
    return found


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: f"{command.page}-{command.line}")
def test_a_pages_curl_is_answered(command: Command, service: Service, job_id: str) -> None:
    values = {"B": service.url, "ID": job_id, "ADMIN": OPERATOR, "HEADWAY_API_KEY": service.key}
    words = [Template(word).safe_substitute(values) for word in command.words]
    answer = curl(words[1:], service)
    assert answer.status_code < 400, f"{command}\n{answer.status_code}: {answer.text}"


def curl(words: list[str], service: Service) -> httpx.Response:
    """What curl would send; without a key in it, with the tests' own."""
    headers = httpx.Headers({"Authorization": f"Bearer {service.key}"})
    method, url, body = "GET", "", None
    left = iter(words)
    for word in left:
        if word == "-X":
            method = next(left)
        elif word == "-H":
            name, _, value = next(left).partition(":")
            headers[name] = value.strip()
        elif word in {"-d", "--json"}:
            method, body = ("POST" if method == "GET" else method), next(left)
            headers.setdefault("Content-Type", "application/json" if word == "--json" else FORM)
        elif word not in FLAGS:
            assert not word.startswith("-"), f"an option that this test does not know: {word}"
            url = re.sub(r"^http://127\.0\.0\.1:8000", service.url, word)
    if body is not None:
        body = re.sub(r'("model": )"[^"]*"', rf'\1"{MODEL}"', body)
        json.loads(body)
    return httpx.request(method, url, headers=headers, content=body, timeout=20)
