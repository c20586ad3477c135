"""A job's trace tells its whole way, over every worker that had it, whoever of them was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry
from tests.services.worker.conftest import JobMaker, StartWorker

from headway.gateway.app import create_app
from headway.gateway.settings import GatewaySettings
from headway.queueing.client import Client
from headway.queueing.memory_queue import MemoryQueue
from headway.services.errors import UsageError
from headway.services.request_traces import HttpTraces
from headway.services.start_tracing import start_tracing
from headway.services.tracing import Tracing, open_tracing

CLIENTS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collected:
    """A process's tracing, and the spans that left it."""

    def __init__(self, service: str) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracing: Tracing = open_tracing(
            "http://nobody:4318", service=service, instance="1", exporter=self._exporter
        )

    def spans(self) -> Sequence[ReadableSpan]:
        self.tracing.close()
        return self._exporter.get_finished_spans()


def named(spans: Sequence[ReadableSpan], name: str) -> ReadableSpan:
    (span,) = [span for span in spans if span.name == name]
    return span


def ids(span: ReadableSpan) -> tuple[int, int]:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


async def test_one_trace_leads_from_the_clients_span_through_gateway_and_queue_to_decode(
    queue: MemoryQueue, start_worker: StartWorker
) -> None:
    worker, gateway = Collected("headway-worker"), Collected("headway-gateway")
    async with start_worker(traced_by=worker.tracing):
        while not await queue.workers():
            await asyncio.sleep(0.01)
        app = create_app(
            queue,
            GatewaySettings(),
            registry=CollectorRegistry(),
            clock=asyncio.get_running_loop().time,
            wall_clock=lambda: 0.0,
            traces=HttpTraces(gateway.tracing),
        )
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
            answer = await http.post(
                "/v1/completions",
                json={"model": "scripted", "prompt": "abc", "max_tokens": 5},
                headers={"traceparent": CLIENTS},
            )
            assert answer.status_code == 200, answer.text
            await http.get("/healthz")
        await asyncio.sleep(0)
    (request,) = gateway.spans()  # a probe has none
    spans = worker.spans()
    waiting, attempt = named(spans, "queue"), named(spans, "attempt 1")
    prefill, decode = named(spans, "prefill"), named(spans, "decode")
    assert request.name == "POST /v1/completions"
    assert request.parent is not None
    assert f"{request.parent.span_id:016x}" == CLIENTS.split("-")[2]
    assert {ids(span)[0] for span in (request, *spans)} == {int(CLIENTS.split("-")[1], 16)}
    for span, parent in ((waiting, request), (attempt, request), (prefill, attempt), (decode, attempt)):
        assert span.parent is not None
        assert span.parent.span_id == ids(parent)[1], span.name
    times = [waiting.start_time, waiting.end_time, prefill.start_time, prefill.end_time, decode.end_time]
    known = [time for time in times if time is not None]
    assert len(known) == 5
    assert known == sorted(known)
    assert attempt.attributes is not None
    assert attempt.attributes["gen_ai.usage.output_tokens"] == 5
    assert attempt.attributes["headway.outcome"] == "length"
    assert request.attributes is not None
    assert request.attributes["http.response.status_code"] == 200


async def test_the_attempt_after_a_killed_worker_links_to_the_one_that_nobody_could_tell(
    queue: MemoryQueue, client: Client, start_worker: StartWorker, job: JobMaker
) -> None:
    killed, second = Collected("headway-worker"), Collected("headway-worker")
    posted = job("abc", 40)
    async with start_worker(traced_by=killed.tracing, model="scripted:ms_per_step=20") as first:
        job_id = (await queue.submit(posted)).job_id
        while (await queue.status(job_id)).committed_tokens < 3:
            await asyncio.sleep(0.01)
        await first.vanish()
    async with start_worker(traced_by=second.tracing, worker_id="w-2"):
        while await queue.result(job_id) is None:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0)
    assert killed.spans() == ()
    attempt = named(second.spans(), "attempt 2")
    (link,) = attempt.links
    assert link.context.trace_id == ids(attempt)[0], "a job without a traceparent has one trace all the same"
    assert link.context.span_id != ids(attempt)[1]
    assert attempt.attributes is not None
    assert attempt.attributes["headway.resumed_tokens"] >= 3  # type: ignore[operator]  # a number


async def test_a_handed_back_job_leaves_an_attempt_to_which_the_next_one_links(
    queue: MemoryQueue, start_worker: StartWorker, job: JobMaker
) -> None:
    first, second = Collected("headway-worker"), Collected("headway-worker")
    async with start_worker(
        traced_by=first.tracing, drain_seconds=0.0, model="scripted:ms_per_step=20"
    ) as it:
        job_id = (await queue.submit(job("abc", 40))).job_id
        while (await queue.status(job_id)).committed_tokens < 3:
            await asyncio.sleep(0.01)
        await it.drained()
    async with start_worker(traced_by=second.tracing, worker_id="w-2"):
        while await queue.result(job_id) is None:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0)
    before, after = named(first.spans(), "attempt 1"), named(second.spans(), "attempt 2")
    assert before.attributes is not None
    assert before.attributes["headway.outcome"] == "handed_back"
    (link,) = after.links
    assert (link.context.trace_id, link.context.span_id) == ids(before)


def test_traces_to_what_is_no_http_url_are_refused_with_an_example() -> None:
    with pytest.raises(UsageError, match="go over HTTP"):
        start_tracing("collector:4317", service="headway-worker", instance="w")
    assert start_tracing(None, service="headway-worker", instance="w") is None
