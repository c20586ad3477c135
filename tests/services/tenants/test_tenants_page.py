"""docs/tenants.md does what it says, and ``headway up --tenants`` follows its file while it runs."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Generator
from pathlib import Path

import httpx
import pytest
from tests.services.up.headway_up import (
    HEADWAY,
    HeadwayUp,
    clean_environment,
    eventually,
    headway,
    running_up,
)

from headway.queueing.tenant_file import read_tenant_file
from headway.queueing.tenants import TenantLimits

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "tenants.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Generator[HeadwayUp]:
    home = tmp_path_factory.mktemp("up")
    (home / "tenants.toml").write_text("[filed]\nrpm = 5\n")
    with running_up(home, "--tenants", "tenants.toml") as running:
        yield running


def sh(up: HeadwayUp, script: str) -> str:
    """Run a script in which ``headway`` is this one, against this state dir."""
    begin = f'set -euo pipefail\nheadway() {{ {shlex.join(HEADWAY)} "$@"; }}\n'
    done = subprocess.run(
        ["bash", "-c", begin + script],
        env=clean_environment(up.home, {"HEADWAY_STATE_DIR": str(up.state_dir)}),
        cwd=up.home,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_commands_of_the_page_work_in_order_and_print_what_it_shows(up: HeadwayUp) -> None:
    assert len(BLOCKS) == 3
    first = sh(up, BLOCKS[0])
    shown = re.findall(r"^    (acme: .*(?:\n      .*)+)", PAGE, re.MULTILINE)[0].replace("\n    ", "\n")
    assert first.endswith(shown + "\n")
    assert '"rpm": 20' in sh(up, BLOCKS[1])
    secret, listed = sh(up, BLOCKS[2]).split("\n", 1)
    assert "laptop" in listed
    body = {"model": "scripted", "prompt": "x", "priority": "batch", "sampling": {"max_tokens": 2}}
    keyed = {"Authorization": f"Bearer {secret}"}

    def is_closed() -> bool:
        return httpx.post(f"{up.url}/v1/jobs", json=body).status_code == 401

    eventually("the key is asked for", is_closed, seconds=5)
    accepted = httpx.post(f"{up.url}/v1/jobs", json=body, headers=keyed)
    assert accepted.status_code == 202
    assert accepted.headers["x-ratelimit-limit-requests"] == "50"
    refused = httpx.post(f"{up.url}/v1/jobs", json=body | {"priority": "interactive"}, headers=keyed)
    assert refused.status_code == 403
    sh(up, f"headway keys revoke --open {secret}")


def test_a_running_service_follows_its_file(up: HeadwayUp) -> None:
    assert "filed: weight 1, 5 requests/min" in sh(up, "headway tenants list")
    (up.home / "tenants.toml").write_text("[filed]\nrpm = 6\nweight = 3\n")
    eventually(
        "the file is applied", lambda: "weight 3, 6 requests/min" in sh(up, "headway tenants list"), 20
    )
    (up.home / "tenants.toml").write_text("[filed]\nrpm = no\n")
    eventually(
        "the mistake is logged",
        lambda: "tenants_file_refused" in (up.state_dir / "logs/gateway.log").read_text(),
        20,
    )
    assert "weight 3, 6 requests/min" in sh(up, "headway tenants list")


def test_a_mistake_in_the_file_stops_the_start_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text("[acme]\nrpm = -1\n")
    done = headway("up", "--model", "scripted", "--port", "0", "--tenants", "t.toml", home=tmp_path)
    assert done.returncode == 2
    assert "t.toml:2: acme: rpm" in done.stderr


def test_every_limit_is_on_the_page_by_option_and_field() -> None:
    for field in TenantLimits.model_fields:
        option = f"--{field.removesuffix('_seconds').replace('_', '-')}"
        assert f"`{option}`" in PAGE
        assert f"`{field}`" in PAGE


def test_the_toml_of_the_page_is_valid() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert set(read_tenant_file(text).tenants) == {"acme", "night.batch"}
