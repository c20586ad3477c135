"""The console in a real browser, over a real gateway and the real engine: what people see and do there."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.gateway.browser import Browser, chromedriver, window
from tests.gateway.conftest import Rig, gateway_of
from tests.gateway.scripted_worker import ScriptedWorker, card

from headway.engine.engine import Engine
from headway.engine.limits import StepLimits
from headway.engine.policy import POLICIES
from headway.engine.scripted import ByteTokenizer, ScriptedRunner, StepCost
from headway.engine.values import RequestSpec, Sampling
from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.messages import Job
from headway.queueing.tenant_book import digest_of
from headway.services.model_host import build_engine
from headway.services.settings import WorkerSettings
from headway.services.step_view import StepViewer
from headway.services.worker_core import Worker

ADMIN = "an-operators-key"
CLASSES = ("interactive", "standard", "batch")
PAGES = ("live", "tenants", "jobs", "try")
SIZES = {"desktop": (1440, 900), "phone": (390, 844)}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """One window for all tests: each has a server of its own, so nothing that a page keeps is shared."""
    with chromedriver() as url, window(url) as opened:
        yield opened


@pytest.fixture
async def browser(address: str) -> AsyncIterator[Browser]:
    async with httpx.AsyncClient(timeout=60) as http:
        opened = Browser(http, address)
        await opened.resize(*SIZES["desktop"])
        yield opened
        await opened.open("about:blank")
        await opened.complaints()


@dataclass
class Service:
    """A gateway over a queue in memory, with the engine's own worker."""

    queue: MemoryQueue
    url: str

    async def submit(self, **fields: Any) -> str:
        body = {"model": "scripted", "prompt": "once", "sampling": {"max_tokens": 400}} | fields
        return (await self.queue.submit(Job.model_validate(body))).job_id


@asynccontextmanager
async def serving(*, admin_key_digest: str = "") -> AsyncIterator[Service]:
    queue = MemoryQueue()
    settings = WorkerSettings(worker_id="w-1", model="scripted:ms_per_step=5,blocks=400", max_sequences=32)
    worker = Worker(queue, build_engine(settings), settings)
    stop, stop_now = asyncio.Event(), asyncio.Event()
    working = asyncio.create_task(worker.run(stop, stop_now))
    rig = Rig(queue, ScriptedWorker(queue))
    try:
        app = rig.app(admin_key_digest=admin_key_digest)
        async with rig.serve(app) as url:
            yield Service(queue, url)
            gateway_of(app).stopping.drain()  # the page's stream ends by itself
    finally:
        stop.set()
        stop_now.set()
        await asyncio.wait_for(working, 10)


PAINTED = """(() => {
  const canvas = document.getElementById("lanes");
  if (canvas.hidden || !canvas.width) return 0;
  const wanted = arguments[0];
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let found = 0;
  for (let at = 0; at < pixels.length; at += 4) {
    if (wanted.every((part, place) => Math.abs(pixels[at + place] - part) < 24)) found += 1;
  }
  return found;
})()"""
DECODE = (40, 161, 146)
"""The colour of decoding, four fifths over the dark ground."""
PREFILL = (223, 165, 58)


async def open_dark(browser: Browser, service: Service) -> None:
    """The page as on a dark system, so that its colours are known."""
    await browser.open(f"{service.url}/console/icon.svg")
    await browser.run("localStorage.setItem('headway-theme', 'dark')")
    await browser.complaints()  # a picture alone makes the browser ask for /favicon.ico
    await browser.open(f"{service.url}/console/")


async def test_the_live_page_draws_the_engines_batch_and_a_lane_leads_to_its_jobs_timeline(
    browser: Browser,
) -> None:
    async with serving() as service:
        await open_dark(browser, service)
        jobs = [await service.submit(tenant=f"team-{number}", prompt="a" * 160) for number in range(4)]
        await browser.until("document.querySelector('#status').dataset.state === 'live'")
        await browser.until(f"{PAINTED} > 400", DECODE)
        assert await browser.run(f"return {PAINTED}", PREFILL) > 0
        await browser.until("document.querySelector('[data-key=running] b').textContent === '4'")
        await browser.run(
            """const box = document.getElementById("lanes").getBoundingClientRect();
            const at = { clientX: box.right - 40, clientY: box.top + 8, bubbles: true };
            document.getElementById("lanes").dispatchEvent(new PointerEvent("pointermove", at));"""
        )
        await browser.until("!document.getElementById('lanes-tip').hidden")
        tip = await browser.text("#lanes-tip")
        assert "team-" in tip
        assert "decodes" in tip
        await browser.run(
            """const box = document.getElementById("lanes").getBoundingClientRect();
            const at = { clientX: box.right - 40, clientY: box.top + 8, bubbles: true };
            document.getElementById("lanes").dispatchEvent(new MouseEvent("click", at));"""
        )
        await browser.until("location.hash.startsWith('#/jobs/')")
        await browser.until("document.querySelectorAll('#job svg .stretch.decode').length === 1")
        shown = await browser.text("#job code")
        assert shown in jobs
        assert (await browser.texts(".happenings b"))[:3] == ["accepted", "claimed", "first token"]
        assert await browser.complaints() == []


async def test_an_answer_is_streamed_into_the_page_as_it_comes_and_is_what_the_job_says(
    browser: Browser,
) -> None:
    async with serving() as service:
        await browser.open(f"{service.url}/console/#/try")
        await browser.until("document.querySelector('#ask-model').value === 'scripted'")
        await browser.write("#ask-text", "<b>hello</b>")
        await browser.write("#ask-tokens", "60")
        await browser.write("#ask-temperature", "0")
        await browser.write("#ask-tenant", "curious")
        await browser.click("#ask-send")
        early = await browser.until("document.querySelector('.said.model p')?.textContent")
        await browser.until("!document.querySelector('#ask-send').disabled")
        whole = await browser.text(".said.model p")
        assert whole.startswith(early)
        assert len(early) < len(whole), "it came at once"
        assert await browser.text(".said.user p") == "<b>hello</b>"
        figures = await browser.texts("#ask-figures b")
        assert figures[1] == "60"
        assert figures[5] == "length"
        link = await browser.text("#ask-job a")
        assert (await service.queue.status(link)).tenant == "curious"
        result = await service.queue.result(link)
        assert result is not None
        assert result.choices[0].text == whole
        assert await browser.complaints() == []


async def test_stopping_an_answer_cancels_its_job(browser: Browser) -> None:
    async with serving() as service:
        await browser.open(f"{service.url}/console/#/try")
        await browser.until("document.querySelector('#ask-model').value === 'scripted'")
        await browser.write("#ask-tokens", "4000")
        await browser.click("#ask-send")
        await browser.until("document.querySelector('.said.model p')?.textContent")
        await browser.click("#ask-stop")
        await browser.until("!document.querySelector('#ask-send').disabled")
        link = await browser.text("#ask-job a")
        async with asyncio.timeout(5):
            while (await service.queue.status(link)).reason is None:
                await asyncio.sleep(0.02)
        assert (await service.queue.status(link)).reason == "cancelled"


async def test_a_closed_service_asks_for_keys_and_keeps_them_in_this_tab_only(browser: Browser) -> None:
    async with serving(admin_key_digest=digest_of(ADMIN)) as service:
        await service.queue.tenant_store.add_key("acme", "", "hw-of-acme")
        await browser.open(f"{service.url}/console/")
        await browser.until("!document.querySelector('#locked').hidden")
        assert "administrator" in await browser.text("#locked-why")
        await browser.click("#unlock")
        await browser.write("#key-admin", ADMIN)
        await browser.write("#key-api", "hw-of-acme")
        await browser.click("#key-form button[type=submit]")
        await browser.until("document.querySelector('#status').dataset.state === 'live'")
        await browser.until("document.querySelector('#locked').hidden")
        await browser.until("!document.querySelector('#live').hidden")
        await browser.run("location.hash = '#/try'")
        await browser.until("document.querySelector('#ask-tenant').disabled")
        await browser.until("document.querySelector('#ask-model').value")
        await browser.write("#ask-tokens", "3")
        await browser.click("#ask-send")
        await browser.until("document.querySelectorAll('#ask-figures b')[5].textContent === 'length'")
        link = await browser.text("#ask-job a")
        assert (await service.queue.status(link)).tenant == "acme"
        kept = await browser.run("return [location.href, document.cookie, JSON.stringify(localStorage)]")
        assert ADMIN not in "".join(kept)
        assert "hw-of" not in "".join(kept)
        await browser.click("#keys")
        await browser.click("#key-forget")
        assert await browser.run("return sessionStorage.length") == 0


def full_view(step: int) -> bytes:
    """A view of 256 requests of 100 tenants, some of which gave way."""
    now = round(time.time() * 1000)
    names = [f"tiny:0:01M8NYXDZK7ETCPBZQQV{number:06}#0" for number in range(256)]
    steps = [
        [at, now + 20 * at, 18_000 + 100 * (at % 7), 19_000, 900 + at % 90, 12]
        for at in range(step, step + 40)
    ]
    requests: list[Any] = []
    for number, name in enumerate(names):
        runs = [[step, 3, 64, 0], [step + 3, 37, 1, 1]] if number % 5 else [[step + 20, 20, 1, 1]]
        requests.append([name, 1, f"tenant-{number % 100:03}", CLASSES[number % 3], runs])
    events = [[name, 1, "swapped", step + 30, now, "64"] for name in names[::9]]
    view = {
        "at_ms": now,
        "blocks": 1000,
        "skipped": 0,
        "steps": steps,
        "requests": requests,
        "events": events,
    }
    return json.dumps(view).encode()


CUT_OFF = """return [...document.querySelectorAll("main *")].filter((element) => {
  const box = element.getBoundingClientRect();
  const isOut = box.right > innerWidth + 1 || box.left < -1;
  return box.width && isOut && !element.closest(".rows, .chips, .chart");
}).map((element) => element.tagName + "." + element.className + "#" + element.id)"""


@pytest.mark.parametrize("size", SIZES)
async def test_100_tenants_and_256_sequences_fit_into_the_page(
    browser: Browser, size: str, tmp_path: Path
) -> None:
    width, height = SIZES[size]
    await browser.resize(width, height)
    async with serving() as service:
        full = card("full-house", model="tiny", max_running=256, running=256)
        await service.queue.heartbeat(full, ttl_seconds=60)
        for number in range(100):
            for priority in CLASSES:
                for _ in range(1 + number % 3):
                    await service.submit(model="tiny", tenant=f"tenant-{number:03}", priority=priority)
        await open_dark(browser, service)
        await browser.until("document.querySelectorAll('.class-bar span').length === 300")
        for step in (1, 41, 81):
            await service.queue.step_views.show("full-house", full_view(step))
        await browser.click(".chip[data-key=full-house]")
        await browser.until(f"{PAINTED} > 4000", DECODE)
        assert await browser.run("return document.getElementById('lanes').clientHeight") < 720
        for page in PAGES:
            await browser.run("location.hash = `#/${arguments[0]}`", page)
            await browser.until("!document.getElementById(arguments[0]).hidden", page)
            assert await browser.run("return scrollY") == 0, "a page begins at its top"
            assert await browser.run("return document.documentElement.scrollWidth - innerWidth") <= 0, page
            assert await browser.run(CUT_OFF) == [], page
            await browser.picture(tmp_path / f"{size}-{page}.png")
            await browser.run("scrollTo(0, 9999)")
        await browser.run("location.hash = '#/tenants'")
        await browser.until("document.querySelectorAll('#tenant-rows .row:not(.head)').length === 100")
        await browser.write("#tenant-filter", "-09")
        await browser.until("document.querySelectorAll('#tenant-rows .row:not(.head)').length === 10")
        assert await browser.complaints() == []


FOLLOWED = """const [views, done] = arguments;
import("/console/steps.js").then(({ WorkerSteps }) => {
  const worker = new WorkerSteps();
  for (const view of views) worker.add(view);
  const requests = [...worker.requests.values()].map(({ id, lane, runs }) => ({ id, lane, runs }));
  done({ steps: worker.steps.map(({ n, tokens }) => [n, tokens]), requests });
});"""


def views_of_an_engine() -> tuple[list[Any], dict[int, int]]:
    """What an engine shows whose requests come and go, and how many tokens each step really computed."""
    limits = StepLimits(max_step_tokens=40, max_sequences=5)
    runner = ScriptedRunner(cost=StepCost(per_step=0.01))
    engine = Engine(runner, ByteTokenizer(), limits=limits, policy=POLICIES["fair"]())
    viewer = StepViewer(engine.timeline, lambda: 0.0)
    views: list[Any] = []
    for at in range(120):
        if at % 6 == 0:
            sampling = Sampling(temperature=0.0, ignore_eos=True)
            engine.add(RequestSpec(f"r{at}", 0, tuple(range(3 + at)), sampling, 4 + at % 23))
        engine.step(at / 100)
        if at % 17 == 0 or at == 119:
            text = viewer.view(100)
            views += [json.loads(text)] if text else []
    return views, {step.step: sum(step.tokens) for step in engine.timeline.steps}


async def test_the_page_counts_what_the_engine_did_and_no_two_requests_share_a_lane_at_once(
    browser: Browser,
) -> None:
    views, tokens = views_of_an_engine()
    async with serving() as service:
        await browser.open(f"{service.url}/console/")
        followed = await browser.run_async(FOLLOWED, views)
    assert dict(followed["steps"]) == tokens
    held: dict[tuple[int, int], str] = {}
    for request in followed["requests"]:
        for first, steps, _, _ in request["runs"]:
            for step in range(first, first + steps):
                assert held.setdefault((request["lane"], step), request["id"]) == request["id"]
    lanes = {request["lane"] for request in followed["requests"]}
    assert lanes <= set(range(5)), "lanes are used again: never more than the batch is wide"
