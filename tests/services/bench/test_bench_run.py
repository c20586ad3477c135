"""A whole benchmark against a real gateway and worker, and against servers that misbehave."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
from dataclasses import replace
from typing import Any

import pytest
from tests.services.bench.conftest import Serve, quick
from tests.services.bench.peer import Peer

from headway.services.bench.answer import Outcome
from headway.services.bench.bench_page import bench_page
from headway.services.bench.bench_table import table
from headway.services.bench.load import Loaded
from headway.services.bench.plan import make_work
from headway.services.bench.progress import Progress
from headway.services.bench.run import BenchRun
from headway.services.bench.settings import BenchSettings, Slos
from headway.services.errors import NotReachableError, ServiceError, UsageError


async def measure(settings: BenchSettings, progress: Progress | None = None) -> dict[str, Any]:
    result = await BenchRun(settings, progress or Progress(io.StringIO())).run()
    # What is written is what is read, and every picture can be drawn of it.
    read: dict[str, Any] = json.loads(json.dumps(result, allow_nan=False))
    assert bench_page(read).endswith("</html>\n")
    return read


async def test_a_real_service_is_measured_with_prompts_of_exactly_the_length_that_was_asked_for(
    serve: Serve,
) -> None:
    async with serve() as url:
        result = await measure(quick(url, rates=(10.0, 20.0)))
    assert result["valid"]
    assert [point["rate"] for point in result["points"]] == [10.0, 20.0]
    for point in result["points"]:
        assert point["finished"] == point["requests"] > 0
        assert point["prompts"] == {"counted": point["requests"], "exact_share": 1.0, "worst_tokens_off": 0}
        assert point["attainment"] == 1.0
        tokens = result["request_fields"].index("tokens")
        assert {row[tokens] for row in point["requests_sent"]} == {6}
    assert "knee: above 20/s" in "\n".join(table(result))
    assert result["settings"]["seed"] == 0
    assert result["machine"]["cores"] >= 1


async def test_a_closed_loop_keeps_so_many_open_and_no_more(serve: Serve) -> None:
    async with serve() as url:
        result = await measure(quick(url, concurrencies=(3,), answer_tokens=20))
    fields = result["request_fields"]
    sent, ended = fields.index("sent"), fields.index("ended")
    spans = [(row[sent], row[ended]) for row in result["points"][0]["requests_sent"]]
    most = max(sum(start <= at < end for start, end in spans) for at, _ in spans)
    assert most == 3
    assert len(spans) > 6


async def test_a_closed_loop_does_not_wait_for_ever_for_an_answer_that_does_not_end() -> None:
    peer = Peer()
    async with peer.serve() as url:
        run = asyncio.create_task(measure(quick(url, concurrencies=(2,), warmup=0.0, drain=0.2)))
        while len(peer.asked) < 8:
            await asyncio.sleep(0.001)
        peer.gap = 60.0
        result = await asyncio.wait_for(run, 10)
    assert result["points"][0]["unfinished"] > 0
    assert not result["interrupted"]


async def test_clients_that_leave_and_tenants_of_different_shares_are_told_apart(
    serve: Serve, tmp_path: Any
) -> None:
    tenants = tmp_path / "tenants.toml"
    tenants.write_text(
        "[tenant.big]\nshare = 3\nclasses = { interactive = 1 }\n[tenant.small]\nbacklog = 2\n"
    )
    async with serve() as url:
        result = await measure(quick(url, tenants=tenants, cancel_ratio=0.4, answer_tokens=30))
    point = result["points"][0]
    assert {tenant["tenant"] for tenant in point["tenants"]} == {"big", "small"}
    assert point["cancelled"] > 0
    assert point["failed"] == point["broken"] == 0
    assert 0.0 < point["jain_index"] <= 1.0
    assert {each["class"] for each in point["classes"]} == {"interactive", "standard"}


async def test_a_slow_reader_reads_slowly_gets_its_whole_answer_and_is_left_out_of_the_figures() -> None:
    peer = Peer(pieces=("word ",) * 200)
    async with peer.serve() as url:
        settings = quick(url, rates=(10.0,), slow_ratio=0.5, slow_bytes_per_second=40e3, answer_tokens=200)
        result = await measure(settings)
    point, fields = result["points"][0], result["request_fields"]
    assert 0 < point["slow_readers"] < point["requests"] == point["finished"]
    planned = make_work(settings, None).open_loop(10.0, settings.warmup + settings.duration, "0")
    slow = {each.number for each in planned if each.is_slow}
    rows = [dict(zip(fields, row, strict=True)) for row in point["requests_sent"]]
    took = [row["ended"] - row["sent"] for row in rows if row["number"] in slow]
    # Of 17 kB, all but what its socket holds at the end (8 kB at most) at 40 kB a second.
    assert took
    assert min(took) > 0.2


async def test_the_knee_of_a_server_is_searched_for_and_lies_between_two_rates_that_were_tried() -> None:
    async with Peer(serves_per_second=20.0, spares=10).serve() as url:
        settings = quick(url, rates=(80.0,), finds_knee=True, most_points=6, attainment=0.8)
        result = await measure(replace(settings, duration=0.6, slos=Slos(None, None, None)))
    tried = {point["rate"]: point["attainment"] for point in result["points"]}
    assert tried[80.0] < 0.8, "or there is nothing to search for"
    assert 2 < len(tried) <= 6
    knee = result["knee"]
    assert knee["served_rate"] < knee["failed_rate"]
    assert tried[knee["served_rate"]] >= 0.8 > tried[knee["failed_rate"]]
    assert knee["failed_rate"] == min(rate for rate in tried if rate > knee["served_rate"])
    told = f"knee: {knee['served_rate']:g} requests/s; at {knee['failed_rate']:g}/s no longer 80 %"
    assert told in "\n".join(table(result))


async def test_a_search_ends_where_the_client_was_the_bottleneck() -> None:
    async with Peer().serve() as url:
        result = await measure(quick(url, finds_knee=True, max_lateness=1e-7, duration=0.3))
    assert len(result["points"]) == 1
    assert result["knee"] is None
    assert any("the search for the knee ended" in note for note in result["notes"])


class CtrlC(Progress):
    """Presses it as soon as something that counts has been answered."""

    is_pressed = False

    def watch(self, loaded: Loaded, now: float) -> None:
        del now
        has_answer = any(
            answer.outcome is Outcome.FINISHED and answer.planned.seconds >= loaded.start
            for answer in loaded.answers
        )
        if has_answer and not self.is_pressed:
            self.is_pressed = True
            os.kill(os.getpid(), signal.SIGINT)


async def test_a_run_that_is_interrupted_keeps_what_it_has(serve: Serve) -> None:
    settings = quick("", duration=60.0, rates=(20.0, 40.0), answer_tokens=60)
    async with serve() as url:
        running = measure(replace(settings, url=url), CtrlC(io.StringIO()))
        result = await asyncio.wait_for(running, 30)
    assert result["interrupted"]
    assert len(result["points"]) == 1
    assert result["points"][0]["finished"] > 0
    job, first = (result["request_fields"].index(name) for name in ("job", "first"))
    begun = [row for row in result["points"][0]["requests_sent"] if row[first] is not None]
    assert all(row[job] for row in begun), "also of those that were left"
    assert "INTERRUPTED" in "\n".join(table(result))


async def test_a_client_that_cannot_keep_up_is_refused_with_the_reason() -> None:
    async with Peer().serve() as url:
        result = await measure(quick(url, max_lateness=1e-7))
    assert not result["valid"]
    told = "\n".join(table(result))
    assert "INVALID" in told
    assert "requests were sent late" in told


async def test_requests_that_this_client_may_not_open_are_its_own_fault(serve: Serve) -> None:
    async with serve() as url:
        result = await measure(quick(url, max_open=1, answer_tokens=60))
    assert result["points"][0]["unsent"] > 0
    assert not result["valid"]
    assert "were not sent: 1 were open already" in "\n".join(table(result))


async def test_a_server_that_refuses_is_counted_by_status_with_an_example() -> None:
    async with Peer(refuses=429, spares=3).serve() as url:
        result = await measure(quick(url))
    point = result["points"][0]
    assert point["refused"] == point["requests"]
    assert point["errors"][0]["status"] == 429
    assert point["errors"][0]["example"] == "too_many: come again"
    assert point["refusal_seconds"]["p99"] < 5.0
    assert point["goodput_per_second"] == 0.0


async def test_streams_that_end_early_are_broken_and_never_good() -> None:
    peer = Peer()
    async with peer.serve() as url:
        run = asyncio.create_task(measure(quick(url, warmup=0.0)))
        while len(peer.asked) < 4:
            await asyncio.sleep(0.001)
        peer.breaks_after = 1
        result = await run
    point = result["points"][0]
    assert point["broken"] > 0
    assert point["attainment"] == pytest.approx(point["finished"] / point["requests"], abs=1e-4)
    assert "without a finish reason" in point["errors"][0]["example"]


@pytest.mark.parametrize(
    ("peer", "changes", "error", "words"),
    [
        (Peer(key="right"), {}, ServiceError, "wants another API key"),
        (Peer(), {"model": "fast"}, UsageError, "serves no model fast"),
        (Peer(models=("a", "b")), {}, UsageError, "serves 2 models"),
        (Peer(has_usage=False), {}, ServiceError, "sends no usage"),
        (Peer(breaks_after=1), {}, ServiceError, "does not answer a first request"),
        (Peer(refuses=500), {}, ServiceError, "500: too_many"),
        (Peer(known=frozenset({"model", "messages"})), {}, ServiceError, "ignore_eos"),
        (Peer(), {"arrivals": "trace"}, UsageError, "needs --trace"),
        (Peer(), {"length_scale": None}, UsageError, "is for a trace"),
    ],
)
async def test_what_cannot_be_measured_is_refused_before_the_load(
    peer: Peer, changes: dict[str, Any], error: type[ServiceError], words: str
) -> None:
    async with peer.serve() as url:
        with pytest.raises(error, match=words):
            await measure(quick(url, **changes))


async def test_a_server_that_is_not_there_is_told_with_the_command_that_starts_one() -> None:
    with pytest.raises(NotReachableError, match="nobody answers") as told:
        await measure(quick("http://127.0.0.1:9"))
    assert told.value.exit_code == 3
    assert "headway up" in (told.value.hint or "")


async def test_a_key_out_of_the_environment_opens_a_server_that_wants_one() -> None:
    async with Peer(key="right").serve() as url:
        result = await measure(quick(url, api_key="right", duration=0.3))
    assert result["points"][0]["finished"] > 0
    assert "right" not in json.dumps(result)
