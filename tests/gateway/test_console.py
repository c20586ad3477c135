"""The console's files and endpoints: strict, guarded, fed while somebody looks, and discreet."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.gateway.conftest import Rig, gateway_of, over, post_job
from tests.gateway.scripted_worker import Script, card
from tests.gateway.sse_reader import Event, events

from headway.gateway import console_feed
from headway.gateway.console_pages import FOLDER
from headway.queueing.errors import QueueUnavailableError
from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.tenant_book import digest_of

if TYPE_CHECKING:
    from fastapi import FastAPI

FILES = sorted(path.name for path in FOLDER.iterdir())
ADMIN = "an-operators-key"
DIGEST = digest_of(ADMIN)


@asynccontextmanager
async def watching(
    rig: Rig, app: FastAPI | None = None, key: str = ""
) -> AsyncIterator[AsyncIterator[Event]]:
    """The live stream's events, over a real connection."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    async with (
        rig.serve(app) as url,
        httpx.AsyncClient(base_url=url, timeout=5) as http,
        http.stream("GET", "/console/api/live", headers=headers) as response,
    ):
        assert response.status_code == 200, await response.aread()
        yield events(response)


async def next_of(stream: AsyncIterator[Event], kind: str) -> Any:
    async with asyncio.timeout(5):
        async for event in stream:
            if event.event == kind:
                return event.json
    raise AssertionError("the stream ended")


# -- the files


async def test_the_consoles_address_leads_to_its_page_wherever_it_is_mounted(http: httpx.AsyncClient) -> None:
    moved = await http.get("/console")
    assert (moved.status_code, moved.headers["location"]) == (308, "console/")
    page = await http.get("/console/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("name", FILES)
async def test_each_file_comes_under_the_strict_policy_and_asks_for_nothing_from_elsewhere(
    http: httpx.AsyncClient, name: str
) -> None:
    answer = await http.get(f"/console/{name}")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    text = answer.text.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|//[a-z]+\.[a-z]", text), "an address of elsewhere"
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
    )
    assert not re.search(r"<script(?![^>]*\ssrc=)|\sstyle=|\son[a-z]+=", text), "the policy would refuse it"


def test_every_file_that_another_one_names_is_there() -> None:
    for name in FILES:
        text = (FOLDER / name).read_text(encoding="utf-8")
        named = re.findall(r'from "\./([^"]+)"|(?:href|src)="([a-z_]+\.[a-z]+)"', text)
        assert {found for pair in named for found in pair if found} <= set(FILES), name


async def test_a_browser_that_has_a_file_is_told_that_nothing_changed(http: httpx.AsyncClient) -> None:
    first = await http.get("/console/start.js")
    again = await http.get("/console/start.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fapp.py", "%2e%2e%2fapp.py", "..%5capp.py"])
async def test_nothing_beside_the_consoles_files_is_served(http: httpx.AsyncClient, name: str) -> None:
    answer = await http.get(f"/console/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "not_found"


# -- who may look


PATHS = ["/console/api/live", "/console/api/jobs", "/console/api/jobs/tiny:0:01ARZ3NDEKTSV4RRFFQ69G5FAV"]


@pytest.mark.parametrize("path", PATHS)
async def test_where_keys_are_asked_for_only_an_administrators_shows_all_tenants(rig: Rig, path: str) -> None:
    await rig.queue.tenant_store.add_key("acme", "", "hw-of-acme")
    async with rig.client(rig.app(admin_key_digest=DIGEST)) as http:
        nobody = await http.get(path)
        assert (nobody.status_code, nobody.json()["error"]["code"]) == (401, "missing_api_key")
        assert "administrator" in nobody.json()["error"]["message"]
        for key, status in (("hw-of-acme", 403), ("hw-unknown", 403)):
            refused = await http.get(path, headers={"authorization": f"Bearer {key}"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (status, "admin_key_required")


async def test_an_administrator_watches_where_keys_are_asked_for(rig: Rig) -> None:
    await rig.queue.tenant_store.add_key("acme", "", "hw-of-acme")
    async with watching(rig, rig.app(admin_key_digest=DIGEST), ADMIN) as stream:
        figures = await next_of(stream, "figures")
    assert figures["workers"][0]["worker_id"] == "w1"


# -- the feed


async def test_a_console_gets_the_figures_and_each_view_of_steps_as_its_worker_showed_it(rig: Rig) -> None:
    async with watching(rig) as stream:
        assert (await next_of(stream, "figures"))["models"][0]["model"] == "tiny"
        async with asyncio.timeout(5):
            while not await rig.queue.step_views.is_watched():
                await asyncio.sleep(0.01)
        for text in (b'{"steps":[1]}', b"not json", b'"no view"', b'{"steps":\n[2]}'):
            await rig.queue.step_views.show("w1", text)
        shown = [await next_of(stream, "steps") for _ in range(2)]
    assert shown == [{"worker": "w1", "view": {"steps": [1]}}, {"worker": "w1", "view": {"steps": [2]}}]


async def test_who_begins_to_watch_gets_what_was_shown_before(rig: Rig) -> None:
    await rig.queue.step_views.show("w1", b'{"steps":[7]}')
    async with watching(rig) as stream:
        assert (await next_of(stream, "steps"))["view"] == {"steps": [7]}


async def test_once_nobody_looks_nothing_is_asked_any_more(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console_feed, "WATCH_SECONDS", 0.6)
    async with watching(rig) as stream:
        await next_of(stream, "figures")
        assert await rig.queue.step_views.is_watched()
    await asyncio.sleep(0.7)
    assert not await rig.queue.step_views.is_watched()


async def test_a_console_does_not_hold_up_a_gateway_that_drains(rig: Rig) -> None:
    app = rig.app()
    async with watching(rig, app) as stream:
        await next_of(stream, "figures")
        gateway_of(app).stopping.drain()
        async with asyncio.timeout(5):
            async for event in stream:
                assert event.event in {"figures", "steps"}


async def test_a_gateway_feeds_so_many_consoles_and_tells_the_next_one_why_not(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console_feed, "MOST_CONSOLES", 1)
    app = rig.app()
    async with rig.serve(app) as url, httpx.AsyncClient(base_url=url, timeout=5) as http:
        async with http.stream("GET", "/console/api/live") as first:
            assert first.status_code == 200
            second = await http.get("/console/api/live")
            assert second.status_code == 503
            assert second.json()["error"]["code"] == "too_many_consoles"
        async with asyncio.timeout(5):
            while True:  # its place is free once the server has noticed that it left
                async with http.stream("GET", "/console/api/live") as third:
                    if third.status_code == 200:
                        break


class Failing(MemoryQueue):
    """Away for everybody who looks at the models."""

    is_away = True

    async def models(self) -> tuple[str, ...]:
        if self.is_away:
            raise QueueUnavailableError("the server is away")
        return await super().models()


async def test_a_console_hears_that_the_queue_is_away_and_goes_on_when_it_is_back() -> None:
    queue = Failing()
    queue.is_away = False
    async with over(queue, Script()) as rig:
        queue.is_away = True
        async with watching(rig) as stream:
            assert "away" in (await next_of(stream, "trouble"))["message"]
            queue.is_away = False
            assert (await next_of(stream, "figures"))["models"]


# -- jobs


async def test_jobs_are_listed_by_stage_and_by_tenant_and_their_words_stay_secret() -> None:
    async with over(MemoryQueue(), Script(hold_at=2, pieces=("hush", "hush", "more"))) as rig:
        running = await post_job(rig, prompt="secret", tenant="acme")
        await rig.until_seen()
        await rig.queue.heartbeat(card("w2", model="tiny-two"), ttl_seconds=60)
        waiting = await post_job(rig, prompt="secret", tenant="globex", model="tiny-two")
        async with rig.client() as http:
            found = (await http.get("/console/api/jobs")).json()
            assert [job["id"] for job in found["running"]] == [running]
            mine = (await http.get("/console/api/jobs", params={"tenant": "globex"})).json()
            assert [job["id"] for stage in ("waiting", "running", "ended") for job in mine[stage]] == [
                waiting
            ]
            await http.post(f"/v1/jobs/{running}/cancel")
            await rig.until_ended()
            later = await http.get("/console/api/jobs")
            one = await http.get(f"/console/api/jobs/{running}")
        assert [(job["id"], job["reason"]) for job in later.json()["ended"]] == [(running, "cancelled")]
        shown = one.json()
        assert (shown["tenant"], shown["reason"]) == ("acme", "cancelled")
        assert shown["created_ms"] <= shown["claimed_ms"] <= shown["first_token_ms"] <= shown["finished_ms"]
        for answer in (later, one):
            assert "secret" not in answer.text
            assert "hush" not in answer.text


async def test_a_job_that_nobody_knows_is_a_404(http: httpx.AsyncClient) -> None:
    answer = await http.get("/console/api/jobs/tiny:0:01ARZ3NDEKTSV4RRFFQ69G5FAV")
    assert answer.status_code == 404
    limit = await http.get("/console/api/jobs", params={"limit": 0})
    assert limit.status_code == 400
