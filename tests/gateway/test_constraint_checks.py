"""A form that no answer can be held to is a 400 that names the field, and never reaches the queue."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from tests.gateway.conftest import SETTINGS, Rig, until
from tests.gateway.test_chat import CHAT
from tests.gateway.test_chat import URL as CHAT_URL
from tests.gateway.test_refusals import error_of

from headway.gateway import constraint_checks
from headway.gateway.app import create_app
from headway.gateway.check_turns import CheckTurns
from headway.gateway.constraint_checks import MOST_WAITING
from headway.queueing.messages import Constraint

NO_LOOKING_AHEAD = r"(?=a)b"


@pytest.mark.parametrize(
    ("constraint", "field", "words"),
    [
        ({"regex": NO_LOOKING_AHEAD}, "regex", "look-around"),
        ({"json_schema": {"type": "strin"}}, "json_schema", "strin"),
        ({"json_schema": {"type": "integer", "not": {"const": 3}}}, "json_schema", "not"),
        ({"json_schema": {"$ref": "http://example.org/a.json"}}, "json_schema", "not present"),
        ({"json_schema": False}, "json_schema", "allows no value"),
        ({"grammar": "start: missing"}, "grammar", "missing"),
        ({"grammar": "root ::= ("}, "grammar", "Expected ')'"),
        ({"grammar": "start: a\na: b\nb: a"}, "grammar", "no text at all"),
    ],
)
async def test_a_job_is_refused_with_the_librarys_reason(
    rig: Rig, http: httpx.AsyncClient, constraint: dict[str, Any], field: str, words: str
) -> None:
    answer = await http.post("/v1/jobs", json={"model": "tiny", "prompt": "a", "constraint": constraint})
    assert answer.status_code == 400
    error = error_of(answer)
    assert (error["param"], error["code"]) == (f"constraint.{field}", "invalid_grammar")
    assert words in error["message"]
    assert rig.worker.seen == []


@pytest.mark.parametrize(
    ("url", "fields", "param"),
    [
        (
            CHAT_URL,
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "x", "schema": {"type": "strin"}},
                }
            },
            "response_format.json_schema.schema",
        ),
        (CHAT_URL, {"structured_outputs": {"regex": NO_LOOKING_AHEAD}}, "structured_outputs.regex"),
        (CHAT_URL, {"guided_grammar": "root ::= ("}, "guided_grammar"),
        ("/v1/completions", {"guided_regex": NO_LOOKING_AHEAD}, "guided_regex"),
    ],
)
async def test_the_field_that_asked_for_it_is_named(
    rig: Rig, http: httpx.AsyncClient, url: str, fields: dict[str, Any], param: str
) -> None:
    body = CHAT if url == CHAT_URL else {"model": "tiny", "prompt": "a"}
    answer = await http.post(url, json=body | fields)
    assert answer.status_code == 400
    assert error_of(answer)["param"] == param
    assert rig.worker.seen == []


class SlowChecks:
    """A gateway whose check of the regex ``slow`` lasts until the test lets it end."""

    def __init__(self, rig: Rig) -> None:
        self.may_end = threading.Event()
        self.begun: list[str] = []
        self.app = create_app(
            rig.queue,
            SETTINGS,
            registry=CollectorRegistry(),
            clock=time.monotonic,
            wall_clock=time.time,
            constraint_refusal=self._refusal,
        )

    def _refusal(self, constraint: Constraint) -> str | None:
        self.begun.append(constraint.regex or "")
        if constraint.regex == "slow":
            self.may_end.wait(10)
        return None


@pytest.fixture
def slow_checks(rig: Rig) -> Iterator[SlowChecks]:
    checks = SlowChecks(rig)
    yield checks
    checks.may_end.set()


async def post(http: httpx.AsyncClient, tenant: str, regex: str) -> httpx.Response:
    job = {"model": "tiny", "prompt": "a", "tenant": tenant, "constraint": {"regex": regex}}
    return await http.post("/v1/jobs", json=job)


async def test_slow_forms_of_one_tenant_hold_up_its_own_checks_only(
    rig: Rig, slow_checks: SlowChecks
) -> None:
    async with rig.client(slow_checks.app) as http:
        own = [asyncio.create_task(post(http, "greedy", "slow")) for _ in range(5)]
        own.append(asyncio.create_task(post(http, "greedy", "own")))
        await until(lambda: bool(slow_checks.begun))
        async with asyncio.timeout(5):
            assert (await post(http, "other", "quick")).status_code == 202
        assert slow_checks.begun == ["slow", "quick"]
        slow_checks.may_end.set()
        assert [(await answer).status_code for answer in own] == [202] * 6


async def test_a_tenant_whose_checks_pile_up_is_told_to_come_back(rig: Rig, slow_checks: SlowChecks) -> None:
    async with rig.client(slow_checks.app) as http:
        answers = [asyncio.create_task(post(http, "greedy", "slow")) for _ in range(MOST_WAITING + 2)]
        refused = await next(asyncio.as_completed(answers))
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "constraint_checks_busy"
        assert refused.headers["retry-after"] == "1"
        assert refused.headers["x-headway-reason"] == "constraint_checks_busy"
        slow_checks.may_end.set()
        statuses = Counter([(await answer).status_code for answer in answers])
        assert statuses == {202: MOST_WAITING + 1, 429: 1}


async def test_a_form_that_takes_too_long_is_refused_and_so_is_who_waits_behind_it(
    rig: Rig, slow_checks: SlowChecks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop turns on meanwhile. A check that is given up goes on, and keeps its place."""
    monkeypatch.setattr(constraint_checks, "MOST_SECONDS", 0.2)
    async with rig.client(slow_checks.app) as http:
        too_slow = await post(http, "one", "slow")
        assert (too_slow.status_code, error_of(too_slow)["code"]) == (400, "invalid_grammar")
        assert (await post(http, "one", "quick")).status_code == 429
        assert (await post(http, "two", "slow")).status_code == 400
        busy_with_others = await post(http, "three", "quick")
        assert (busy_with_others.status_code, busy_with_others.headers["retry-after"]) == (503, "1")
        slow_checks.may_end.set()
        assert (await post(http, "three", "quick")).status_code == 202


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["ask", "end", "leave"])), max_size=60))
def test_turns_are_fair_whoever_comes_ends_or_leaves(steps: list[tuple[str, str]]) -> None:
    """Two places: none with two, none empty while another tenant waits, and every place comes back."""

    async def play() -> None:
        turns = CheckTurns(2, most_waiting=4)
        asked: dict[str, list[asyncio.Task[None]]] = {tenant: [] for tenant in "abc"}
        for tenant, step in steps:
            mine = asked[tenant]
            if step == "ask":
                mine.append(asyncio.create_task(turns.take(tenant)))
            elif step == "leave" and mine and not mine[-1].done():
                mine.pop().cancel()
            elif step == "end" and mine and mine[0].done() and mine.pop(0).exception() is None:
                turns.give_back(tenant)  # and whoever leaves right after may just have been given it
                continue
            await settle()
            has = {each: sum(took(task) for task in tasks) for each, tasks in asked.items()}
            waits = {each for each, tasks in asked.items() if any(not task.done() for task in tasks)}
            assert max(has.values()) <= 1
            assert sum(has.values()) == 2 or all(has[each] for each in waits)
        for tasks in asked.values():
            for task in tasks:
                task.cancel()
        await settle()
        for tenant, tasks in asked.items():
            for _ in [task for task in tasks if took(task)]:
                turns.give_back(tenant)
        async with asyncio.timeout(2):
            await asyncio.gather(turns.take("d"), turns.take("e"))

    asyncio.run(play())


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


def took(task: asyncio.Task[None]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
