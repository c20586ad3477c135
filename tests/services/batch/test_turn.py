"""A batch goes from its file to its results, each line exactly once, whatever happens on the way."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.gateway.conftest import Rig, until
from tests.services.batch.conftest import Service, chat_line, jsonl

from headway.queueing.batch_store import BatchStore
from headway.queueing.events import EndReason
from headway.queueing.messages import Job
from headway.queueing.protocol import Queue
from headway.queueing.settling import settle
from headway.services.batch.flight import Flight
from headway.services.batch.line import Line
from headway.services.batch.turn import take_turn


async def test_every_line_of_a_batch_is_answered_once(service: Service) -> None:
    ids = [f"line-{n}" for n in range(30)]
    batch_id = await service.post(*(chat_line(each) for each in ids))
    assert await service.turn(batch_id)
    batch = await service.batch(batch_id)
    assert (batch.state, batch.tally.completed, batch.tally.failed) == ("completed", 30, 0)
    output, errors = await service.results(batch_id)
    assert sorted(output) == sorted(ids)
    assert errors == {}
    assert await service.queue.batch_store.open_batches() == ()


async def test_lines_that_fail_are_told_in_the_error_file_and_the_rest_is_answered(service: Service) -> None:
    batch_id = await service.post(
        chat_line("good"),
        chat_line("no-such-model", model="other"),
        chat_line("bad-field", temperature=7),
        chat_line("streams", stream=True),
    )
    assert await service.turn(batch_id)
    batch = await service.batch(batch_id)
    assert (batch.state, batch.tally.completed, batch.tally.failed) == ("completed", 1, 3)
    output, errors = await service.results(batch_id)
    assert list(output) == ["good"]
    told = {name: (line["response"]["status_code"], code_of(line)) for name, line in errors.items()}
    assert told == {
        "no-such-model": (404, "model_not_found"),
        "bad-field": (400, "invalid_value"),
        "streams": (400, "invalid_value"),
    }


async def test_a_form_that_no_answer_can_be_held_to_is_its_lines_error_and_is_never_queued(
    service: Service, rig: Rig
) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "no such type"}}}
    batch_id = await service.post(
        chat_line("good", structured_outputs={"choice": ["Hello, world!"]}),
        chat_line("bad-regex", structured_outputs={"regex": "(unclosed"}),
        chat_line("bad-schema", response_format=schema),
    )
    assert await service.turn(batch_id)
    output, errors = await service.results(batch_id)
    assert list(output) == ["good"]
    told = {name: line["response"]["body"]["error"] for name, line in errors.items()}
    assert {name: (error["code"], error["param"]) for name, error in told.items()} == {
        "bad-regex": ("invalid_grammar", "structured_outputs.regex"),
        "bad-schema": ("invalid_grammar", "response_format.json_schema.schema"),
    }
    assert len(rig.worker.seen) == 1


async def test_an_answer_has_the_words_of_the_endpoint(service: Service) -> None:
    batch_id = await service.post(chat_line("a", metadata={"mine": "1"}))
    await service.turn(batch_id)
    output, _ = await service.results(batch_id)
    response: Any = output["a"]["response"]
    assert response["status_code"] == 200
    assert response["body"]["object"] == "chat.completion"
    assert response["body"]["choices"][0]["message"]["content"] == "Hello, world!"
    assert response["body"]["usage"]["completion_tokens"] == 5
    assert output["a"]["error"] is None


async def test_several_prompts_of_one_line_are_one_answer(service: Service) -> None:
    body = {"model": "tiny", "prompt": ["one", "two"], "max_tokens": 8}
    line: dict[str, object] = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body}
    batch_id = await service.post(line, endpoint="/v1/completions")
    await service.turn(batch_id)
    output, _ = await service.results(batch_id)
    response: Any = output["a"]["response"]
    assert [choice["index"] for choice in response["body"]["choices"]] == [0, 1]


@pytest.mark.parametrize(
    ("raw", "code", "line"),
    [
        (b"", "empty_file", None),
        (b"\n\n", "empty_file", None),
        (jsonl(chat_line("a")) + b"{oops\n", "invalid_json_line", 2),
        (jsonl(chat_line("a")) + b"[]\n", "invalid_json_line", 2),
        (jsonl(chat_line("a"), chat_line("b"), chat_line("a")), "duplicate_custom_id", 3),
        (jsonl(chat_line("a") | {"method": "GET"}), "invalid_method", 1),
        (jsonl(chat_line("a") | {"url": "/v1/completions"}), "mismatched_url", 1),
        (jsonl(chat_line("a") | {"body": "hi"}), "invalid_body", 1),
        (jsonl(chat_line("")), "invalid_custom_id", 1),
        (jsonl(chat_line("a") | {"extra": 1}), "unknown_parameter", 1),
        (b"x" * (5 << 20), "line_too_long", 1),
    ],
)
async def test_an_input_that_is_no_batch_fails_with_the_line_and_nothing_runs(
    service: Service, rig: Rig, raw: bytes, code: str, line: int | None
) -> None:
    batch_id = await service.post(raw=raw)
    assert await service.turn(batch_id)
    batch = await service.batch(batch_id)
    assert batch.state == "failed"
    assert batch.outcome is not None
    assert [(fault.code, fault.line) for fault in batch.outcome.faults] == [(code, line)]
    assert not rig.worker.seen


async def test_a_cancelled_batch_keeps_what_is_done_and_reports_it_as_done(
    service: Service, rig: Rig
) -> None:
    """Field case 38: stdapi#60 reported lines that had been answered as cancelled; others lost them."""
    lines = [chat_line(f"quick-{n}") for n in range(6)] + [chat_line(f"later-{n}", "hold") for n in range(30)]
    batch_id = await service.post(*lines)
    turn = asyncio.create_task(service.turn(batch_id))
    await until(lambda: len(rig.worker.ended) >= 6)
    await service.queue.batch_store.cancel_batch(batch_id)
    assert (await service.batch(batch_id)).state == "cancelling"
    assert await turn
    batch = await service.batch(batch_id)
    assert batch.state == "cancelled"
    output, errors = await service.results(batch_id)
    assert {f"quick-{n}" for n in range(6)} <= output.keys()
    assert output.keys() | errors.keys() == {line["custom_id"] for line in lines}
    assert not output.keys() & errors.keys()
    assert {code_of(line) for line in errors.values()} == {"batch_cancelled"}
    assert (batch.tally.completed, batch.tally.failed) == (len(output), len(errors))
    await until(lambda: len(rig.worker.ended) == len(rig.worker.seen))


async def test_the_early_end_has_no_more_lines_at_hand_than_the_work_before_it(
    service: Service, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And finds what another process has posted before it was killed, of any open part."""
    service.settings = replace(service.settings, open_parts=8)
    lines = [chat_line(f"{n}", "hold" if n % 5 else "quick") for n in range(50)]
    batch_id = await service.post(*lines)
    turn = asyncio.create_task(service.turn(batch_id))
    await until(lambda: len(rig.worker.seen) - len(rig.worker.ended) >= 8)
    turn.cancel()
    with suppress(asyncio.CancelledError):
        await turn
    await service.queue.batch_store._commands.call("DEL", f"turn:{{batch}}:run:{batch_id}")
    await service.queue.batch_store.cancel_batch(batch_id)
    most, add = 0, Flight.add

    async def counted(self: Flight, part: int, line: Line) -> None:
        nonlocal most
        await add(self, part, line)
        most = max(most, self.size)

    monkeypatch.setattr(Flight, "add", counted)
    quick = len([reason for reason in rig.worker.ended.values() if reason is EndReason.STOP])
    assert await service.turn(batch_id)
    assert 0 < most <= service.settings.most_in_flight
    output, errors = await service.results(batch_id)
    assert output.keys() | errors.keys() == {line["custom_id"] for line in lines}
    assert not output.keys() & errors.keys()
    assert len(output) == quick > 0
    await until(lambda: len(rig.worker.ended) == len(rig.worker.seen))


async def test_an_expired_batch_keeps_what_is_done(service: Service, rig: Rig) -> None:
    """Field case 38: warmbly#333, an expired batch had a usable output file that nobody was told of."""
    lines = [chat_line(f"quick-{n}") for n in range(4)] + [chat_line(f"later-{n}", "hold") for n in range(30)]
    batch_id = await service.post(*lines, seconds=2.0)
    assert await service.turn(batch_id)
    assert (await service.batch(batch_id)).state == "expired"
    output, errors = await service.results(batch_id)
    assert output.keys() == {f"quick-{n}" for n in range(4)}
    assert len(errors) == 30
    assert {code_of(line) for line in errors.values()} == {"batch_expired"}


async def test_jobs_run_in_the_lowest_class_and_no_more_than_a_few_at_a_time(
    service: Service, rig: Rig
) -> None:
    most = 0
    real = rig.worker.script

    def counted(job: Job) -> tuple[str, ...]:
        nonlocal most
        assert (job.priority, job.tenant, job.on_disconnect) == ("batch", "acme", "detach")
        most = max(most, len(rig.worker.seen) - len(rig.worker.ended))
        return real.pieces

    rig.worker.script = replace(real, pieces_of=counted)
    body = {"priority": "interactive", "tenant": "evil"}
    batch_id = await service.post(*(chat_line(f"{n}", **body) for n in range(40)))
    assert await service.turn(batch_id)
    assert (await service.batch(batch_id)).tally.completed == 40
    assert 0 < most <= service.settings.most_in_flight


async def test_a_tenants_quota_slows_a_batch_and_fails_no_line(service: Service) -> None:
    await service.queue.tenant_store.set("acme", {"concurrency": 2})
    batch_id = await service.post(*(chat_line(f"{n}") for n in range(20)))
    settings = asyncio.create_task(settling(service))
    try:
        async with asyncio.timeout(20):
            assert await service.turn(batch_id)
    finally:
        settings.cancel()
    assert (await service.batch(batch_id)).tally.completed == 20


async def test_a_turn_that_is_cut_off_anywhere_neither_loses_nor_doubles_a_line(
    service: Service, rig: Rig
) -> None:
    rng = Random(38)
    ids = {f"line-{n}" for n in range(60)}
    batch_id = await service.post(*(chat_line(each) for each in sorted(ids)))
    cuts = 0
    for _ in range(400):
        turn = asyncio.create_task(service.turn(batch_id))
        done, _ = await asyncio.wait({turn}, timeout=rng.uniform(0, 0.06))
        if done and turn.result():
            break
        turn.cancel()
        with suppress(asyncio.CancelledError):
            await turn
        cuts += 1
        # What a killed process leaves: its turn, until that lapses.
        await service.queue.batch_store._commands.call("DEL", f"turn:{{batch}}:run:{batch_id}")
    output, errors = await service.results(batch_id)
    assert output.keys() == ids
    assert errors == {}
    assert cuts > 3
    assert len(rig.worker.seen) == 60, "no line was computed twice"


async def test_two_processes_at_once_make_one_result(service: Service) -> None:
    ids = {f"line-{n}" for n in range(40)}
    batch_id = await service.post(*(chat_line(each) for each in sorted(ids)))
    blind = _Blind(service.queue)
    turns = [asyncio.create_task(take_turn(replace(service.around, queue=blind), batch_id)) for _ in range(3)]  # type: ignore[arg-type]
    await asyncio.gather(*turns, return_exceptions=True)
    while not await service.turn(batch_id):
        pass
    output, errors = await service.results(batch_id)
    assert output.keys() == ids
    assert errors == {}
    page = await service.queue.batch_store.file_page("acme", None, 100, "desc")
    assert page is not None
    assert len(page.ids) == 2  # the input and one output


async def test_nothing_is_left_of_the_work_after_the_end(service: Service) -> None:
    batch_id = await service.post(*(chat_line(f"{n}") for n in range(10)))
    await service.turn(batch_id)
    assert service.storage.names("work") == []
    assert await service.queue.batch_store.parts(batch_id) == {}


class _Blind:
    """A queue under which everybody gets every turn."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self.batch_store = _EveryTurn(queue.batch_store._commands)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class _EveryTurn(BatchStore):
    async def take_turn(self, *_: object) -> bool:
        return True

    async def keep_turn(self, *_: object) -> bool:
        return True


async def settling(service: Service) -> None:
    while True:
        for model in await service.queue.models():
            await settle(service.queue, model)
        await asyncio.sleep(0.02)


def code_of(line: dict[str, Any]) -> object:
    error = line["error"]
    return error["code"] if error else line["response"]["body"]["error"]["code"]
