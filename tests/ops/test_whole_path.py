"""Prometheus itself scrapes a real service, reads every query and fires; a collector gets real spans."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self

import httpx
import pytest
import yaml
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from tests.conftest import missing
from tests.ops.chart import TRIAL, of_kind, render
from tests.ops.conftest import ROOT
from tests.ops.test_helm import SCALED
from tests.ops.test_monitoring import DASHBOARDS, expressions
from tests.services.up.headway_up import eventually, running_up

RIGHTLY_EMPTY: Final = (
    *("headway_preemption", "headway_draft_tokens", "headway_gateway_repeated_submits"),
    *("headway_tenant_virtual_time", "headway_tenant_backlog"),
)
"""Of panels where nobody gives way, guesses, repeats or waits."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


class Collector:
    """An OpenTelemetry collector's OTLP/HTTP port."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                request = ExportTraceServiceRequest.FromString(body)
                assert self.path == "/v1/traces"
                for resource in request.resource_spans:
                    for scope in resource.scope_spans:
                        collector.spans.extend(scope.spans)
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 -- its name there
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def serving(self) -> Iterator[None]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]


class Prometheus:
    """Debian's prometheus on our rules, scraping every second."""

    def __init__(self, folder: Path, targets: dict[str, str]) -> None:
        binary = shutil.which("prometheus") or shutil.which("prometheus", path=ROOT / ".venv/promtool")
        if binary is None:
            missing("prometheus")
        configuration = yaml.safe_load((ROOT / "ops/prometheus/prometheus.yml").read_text())
        configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        configuration["rule_files"] = [
            str(ROOT / "ops/prometheus" / n) for n in ("recording.yml", "alerts.yml")
        ]
        for job in configuration["scrape_configs"]:
            del job["dns_sd_configs"]
            job["static_configs"] = [{"targets": [targets[job["job_name"]]]}]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        self.url = f"127.0.0.1:{free_port()}"
        log = folder / "prometheus.log"
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [
                    str(binary),
                    f"--config.file={folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={folder / 'tsdb'}",
                    f"--web.listen-address={self.url}",
                ],
                stdout=out,
                stderr=out,
            )

    def ask(self, query: str) -> list[dict[str, Any]]:
        answer = httpx.get(f"http://{self.url}/api/v1/query", params={"query": query}, timeout=10).json()
        assert answer["status"] == "success", (query, answer)
        result = answer["data"]["result"]
        return [{"value": result}] if answer["data"]["resultType"] == "scalar" else list(result)

    def value(self, query: str) -> float:
        """The one value of a query."""
        (found,) = self.ask(query)
        return float(found["value"][1])

    def is_up(self) -> bool:
        """Whether it runs and has scraped all three targets."""
        try:
            return len(self.ask("up == 1")) == 3
        except (httpx.HTTPError, json.JSONDecodeError):
            return False

    @contextmanager
    def serving(self) -> Iterator[Self]:
        """All targets scraped; ended afterwards."""
        try:
            eventually("all targets are scraped", self.is_up)
            yield self
        finally:
            self._process.terminate()
            self._process.wait(20)


def complete(url: str, tenant: str, *, deadline_seconds: float | None = None) -> None:
    """One streamed answer, read to its end."""
    body = {"model": "scripted", "prompt": "a b c", "max_tokens": 30, "stream": True, "tenant": tenant}
    if deadline_seconds is not None:
        body["deadline_seconds"] = deadline_seconds
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    assert "[DONE]" in answer.text


def trigger_queries(model: str) -> tuple[str, ...]:
    """What the chart's scaler asks of Prometheus."""
    (scaled,) = of_kind(render(TRIAL | {"models": [SCALED | {"servedName": model}]}), "ScaledObject").values()
    return tuple(trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"])


@pytest.mark.soak
def test_every_panel_and_the_scaler_get_their_figures_from_a_real_service_and_no_alert_fires(
    tmp_path: Path,
) -> None:
    metrics_port = free_port()
    env = {"HEADWAY_TTFT": "1s", "HEADWAY_TPOT": "100ms"}
    with running_up(
        tmp_path, "--model", "scripted:ms_per_step=5", f"--metrics-port={metrics_port}", env=env
    ) as up:
        targets = {
            "headway-gateway": up.url.removeprefix("http://"),
            "headway-worker": f"127.0.0.1:{metrics_port}",
            "headway-batch": f"127.0.0.1:{metrics_port + 1}",
        }
        with Prometheus(tmp_path, targets).serving() as prometheus:
            for number in range(8):
                for tenant in ("acme", "zenith"):
                    complete(up.url, tenant, deadline_seconds=30.0 if number % 2 else None)
                httpx.get(f"{up.url}/v1/jobs/unknown:0:x")
                time.sleep(1)  # a scrape
            empty = [
                (path.stem, expr)
                for path in DASHBOARDS
                for expr in expressions(path)
                if not prometheus.ask(expr.replace("$__rate_interval", "30s").replace("$model", ".*"))
            ]
            assert [found for found in empty if not any(name in found[1] for name in RIGHTLY_EMPTY)] == []
            assert prometheus.ask('ALERTS{alertstate="firing"}') == []
            assert prometheus.value("headway:objective_met:ratio") == 1.0
            # As if at zero: nobody takes work, one job comes, and the scaler's question is answered with it.
            jobs, _ = trigger_queries("scripted")
            assert prometheus.value(jobs) == 0.0
            os.kill(up.worker_pid, signal.SIGSTOP)
            try:
                httpx.post(f"{up.url}/v1/jobs", json={"model": "scripted", "prompt": "a"}).raise_for_status()
                eventually("the job is seen", lambda: prometheus.value(jobs) == 1.0, 15)
            finally:
                os.kill(up.worker_pid, signal.SIGCONT)


def test_a_collector_gets_one_trace_of_gateway_and_worker(tmp_path: Path) -> None:
    collector = Collector()
    with collector.serving():
        with running_up(tmp_path, "--otlp", collector.url) as up:
            complete(up.url, "acme")
            assert up.stop() == 0, up.logs()
        # Stopped in order, both processes have sent what they had.
        (request,) = collector.named("POST /v1/completions")
        (attempt,), (decode,) = collector.named("attempt 1"), collector.named("decode")
        assert attempt.trace_id == request.trace_id == decode.trace_id
        assert (attempt.parent_span_id, decode.parent_span_id) == (request.span_id, attempt.span_id)
        assert request.start_time_unix_nano <= attempt.start_time_unix_nano <= decode.end_time_unix_nano
