"""What the batch service counts is what happened, and its pages say how it is."""

from __future__ import annotations

import asyncio
import socket
import threading
import urllib.request
from itertools import pairwise
from pathlib import Path
from urllib.error import HTTPError

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.services.batch.conftest import Service, chat_line
from tests.services.batch.webhook_receiver import receiving

from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.webhook_store import Webhook, WebhookMessage
from headway.services.batch import batch_pages
from headway.services.batch import errands as errands_module
from headway.services.batch.batch_metrics import BatchMetrics, FleetFigures
from headway.services.batch.batch_pages import SILENT_SECONDS, BatchPages, fleet_figures
from headway.services.batch.errands import Errands
from headway.services.batch.settings import BatchSettings
from headway.services.batch.webhook_signature import new_secret
from headway.services.children import batch_command, worker_command
from headway.services.errors import StartError
from headway.services.settings import UpSettings


def told(metrics: BatchMetrics) -> dict[str, float]:
    """Every sample that is not 0, by its name and its labels' values."""
    families = text_string_to_metric_families(metrics.render().decode())
    samples = [sample for family in families for sample in family.samples]
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value
        for sample in samples
        if sample.name.startswith("headway_") and "_created" not in sample.name and sample.value
    }


async def test_lines_batches_and_what_waits_are_counted(service: Service) -> None:
    metrics = BatchMetrics()
    first = await service.post(chat_line("a"), chat_line("b"), chat_line("bad", temperature=7))
    await service.post(chat_line("later"))
    metrics.fleet = await fleet_figures(service.queue)
    assert told(metrics)["headway_open_batches"] == 2
    assert await service.turn(first, metrics=metrics)
    metrics.fleet = await fleet_figures(service.queue)
    found = told(metrics)
    assert 0 <= found.pop("headway_batch_oldest_seconds") < 60
    assert found == {
        "headway_batch_lines_posted_total": 3,
        "headway_batch_lines_total completed": 2,
        "headway_batch_lines_total failed": 1,
        "headway_batches_ended_total completed": 1,
        "headway_open_batches": 1,
    }


async def _left(*_: object) -> None:
    return


def test_webhooks_and_errands_are_counted_by_how_they_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    queue = MemoryQueue()
    monkeypatch.setattr(errands_module, "open_queue", lambda _: queue)
    monkeypatch.setattr(errands_module, "close_queue", _left)
    settings = BatchSettings(files=str(tmp_path), allows_private_webhooks=True)
    errands = Errands(settings)
    with receiving() as receiver:
        asyncio.run(post_message(queue, receiver.url))
        receiver.status = 500
        assert errands.send("msg_1")
        receiver.status = 200
        assert errands.send("msg_1")
        assert errands.send("msg_of_nobody"), "there was nothing to do, and nothing is counted"
    errands.tidy()
    errands.tidy()  # it was done just now
    monkeypatch.setattr(errands_module, "write_usage", broken)
    with pytest.raises(OSError, match="full"):
        errands.keep_books()
    found = told(errands.metrics)
    assert found.pop("headway_batch_errand_done_timestamp_seconds tidy") > 1.7e9
    assert found == {
        "headway_webhook_tries_total failed": 1,
        "headway_webhook_tries_total delivered": 1,
        "headway_batch_errands_total tidy done": 1,
        "headway_batch_errands_total books failed": 1,
    }


async def broken(*_: object) -> None:
    raise OSError("the disk is full")


async def post_message(queue: MemoryQueue, url: str) -> None:
    await queue.webhook_store.put(Webhook("wh_1", "acme", url, new_secret()))
    await queue.webhook_store.post(WebhookMessage("msg_1", "acme", "wh_1", "{}", 0), 0, 10**9)


def page(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def test_the_pages_say_whether_tasks_are_taken_and_the_queue_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, looked = [0.0], threading.Event()
    metrics, queue = BatchMetrics(), MemoryQueue()

    async def look(_: object) -> FleetFigures:
        figures = await fleet_figures(queue)
        looked.set()
        return figures

    monkeypatch.setattr(batch_pages, "fleet_figures", look)
    pages = BatchPages("redis://127.0.0.1:1", metrics, lambda: now[0])
    port = pages.start("127.0.0.1", 0)
    try:
        assert looked.wait(10)
        assert page(port, "/readyz") == (503, "takes no tasks\n")
        pages.came_round()
        assert page(port, "/readyz") == (200, "ready\n")
        assert page(port, "/healthz")[0] == 200
        assert "headway_open_batches 0.0" in page(port, "/metrics")[1]
        assert page(port, "/trace")[0] == 404
        metrics.fleet = None
        assert page(port, "/readyz") == (503, "the queue is away\n")
        assert "headway_open_batches 0.0" not in page(port, "/metrics")[1], "what nobody knows is not told"
        now[0] = SILENT_SECONDS + 1
        assert page(port, "/healthz")[0] == 503
        pages.leave()
        pages.came_round()
        assert page(port, "/readyz") == (503, "takes no tasks\n")
    finally:
        pages.stop()


def test_a_port_that_is_taken_is_told_before_anything_begins() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        pages = BatchPages("redis://127.0.0.1:1", BatchMetrics(), lambda: 0.0)
        with pytest.raises(StartError, match="cannot serve metrics"):
            pages.start("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize(
    ("first", "ports"),
    [(9100, ["9100", "9101", "9102"]), (0, ["0", "0", "0"]), (None, [None] * 3)],
)
def test_each_process_of_up_has_a_metrics_port_of_its_own(first: int | None, ports: list[str | None]) -> None:
    """Also where the environment names one, which every child inherits."""
    settings = UpSettings(Path("state"), workers=2, metrics_port=first)
    commands = [
        worker_command(settings, "w", 0),
        worker_command(settings, "w", 1),
        batch_command(settings, 3),
    ]
    told = [dict(pairwise(command)).get("--metrics-port") for command in commands]
    assert told == ports
