"""What an operator's files are held against: what real processes tell, and Prometheus' own tool."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx
import pytest
from prometheus_client import CollectorRegistry
from tests.conftest import missing

from headway.gateway.app import create_app
from headway.gateway.settings import GatewaySettings
from headway.queueing.memory_queue import MemoryQueue
from headway.services.batch.batch_metrics import BatchMetrics
from headway.services.model_host import build_engine
from headway.services.settings import WorkerSettings
from headway.services.worker_core import Worker

ROOT: Final = Path(__file__).resolve().parents[2]
FAMILY = re.compile(r"^# TYPE (\S+) (\S+)$", re.MULTILINE)
LABELS = re.compile(r"^([a-z_:]+)\{(.*)\} ", re.MULTILINE)
RECORDED = re.compile(r"^ *- record: (\S+)$", re.MULTILINE)

Promtool = Callable[..., str]


def series_of(exposition: str) -> set[str]:
    """Every name that a query may use for what one process tells."""
    names: set[str] = set()
    for name, kind in FAMILY.findall(exposition):
        names.add(name)
        if kind == "histogram":
            names |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    return names


async def _gateway() -> str:
    app = create_app(
        MemoryQueue(),
        GatewaySettings(),
        registry=CollectorRegistry(),
        clock=lambda: 0.0,
        wall_clock=lambda: 0.0,
    )
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http:
        return (await http.get("/metrics")).text


async def _worker() -> str:
    settings = WorkerSettings(worker_id="w", model="scripted", speculation="prompt-lookup")
    worker = Worker(MemoryQueue(), build_engine(settings), settings)
    return worker.render_metrics().decode()


@pytest.fixture(scope="session")
def gateway_exposition() -> str:
    """What a gateway tells before its first request."""
    return asyncio.run(_gateway())


@pytest.fixture(scope="session")
def worker_exposition() -> str:
    """What a worker tells before its first job."""
    return asyncio.run(_worker())


@pytest.fixture(scope="session")
def batch_exposition() -> str:
    """What a process of the batch service tells before its first batch."""
    return BatchMetrics().render().decode()


@pytest.fixture(scope="session")
def expositions(gateway_exposition: str, worker_exposition: str, batch_exposition: str) -> tuple[str, ...]:
    """What each kind of process tells."""
    return gateway_exposition, worker_exposition, batch_exposition


@pytest.fixture(scope="session")
def known_series(expositions: tuple[str, ...]) -> set[str]:
    """Every name that a query may use: told by a process, recorded by a rule, or Prometheus' own."""
    recorded = RECORDED.findall((ROOT / "ops/prometheus/recording.yml").read_text())
    return {name for text in expositions for name in series_of(text)} | set(recorded) | {"up", "ALERTS"}


@pytest.fixture(scope="session")
def promtool() -> Promtool:
    """Run promtool in ops/prometheus; fails the test with its words."""
    found = shutil.which("promtool") or shutil.which("promtool", path=ROOT / ".venv/promtool")  # ops/setup's
    if found is None:
        missing("promtool (Debian: prometheus)")

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [str(found), *arguments], cwd=ROOT / "ops/prometheus", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run
