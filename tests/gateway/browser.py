"""A headless Chromium, driven over W3C WebDriver: just the calls that the console's tests need."""

from __future__ import annotations

import asyncio
import base64
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from tests.conftest import missing

START_SECONDS: Final = 20.0
OPTIONS: Final = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --hide-scrollbars"


@contextmanager
def chromedriver() -> Iterator[str]:
    """The address of a driver of its own; skips on a laptop without one, fails in CI."""
    program = shutil.which("chromedriver")
    if program is None:
        missing("chromedriver (Debian: chromium-driver)")
    assert program is not None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = [program, f"--port={port}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + START_SECONDS
        while not _is_ready(url):
            assert time.monotonic() < deadline, "chromedriver does not answer"
            time.sleep(0.02)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=10)


def _is_ready(url: str) -> bool:
    try:
        return bool(httpx.get(f"{url}/status").json()["value"]["ready"])
    except httpx.TransportError:
        return False


class Browser:
    """One window. ``run`` evaluates a function's body in the page; ``until`` asks until it is true."""

    def __init__(self, http: httpx.AsyncClient, address: str) -> None:
        self._http = http
        self._address = address

    async def _ask(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self._http.request(method, self._address + path, json=body)
        value = answer.json()["value"]
        assert answer.status_code == 200, value
        return value

    async def open(self, url: str) -> None:
        await self._ask("POST", "/url", {"url": url})

    async def run(self, script: str, *arguments: object) -> Any:
        return await self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    async def run_async(self, script: str, *arguments: object) -> Any:
        """A script that calls its last argument with what it found."""
        return await self._ask("POST", "/execute/async", {"script": script, "args": list(arguments)})

    async def texts(self, selector: str) -> list[str]:
        found: list[str] = await self.run(
            "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)", selector
        )
        return found

    async def text(self, selector: str) -> str:
        (found,) = await self.texts(selector)
        return found

    async def until(self, condition: str, *arguments: object, seconds: float = 10.0) -> Any:
        deadline = time.monotonic() + seconds
        while not (value := await self.run(f"return ({condition})", *arguments)):
            assert time.monotonic() < deadline, f"never true: {condition}"
            await asyncio.sleep(0.05)
        return value

    async def click(self, selector: str) -> None:
        await self.run("document.querySelector(arguments[0]).click()", selector)

    async def write(self, selector: str, text: str) -> None:
        script = (
            "const field = document.querySelector(arguments[0]); field.value = arguments[1]; "
            "field.dispatchEvent(new Event('input', { bubbles: true }))"
        )
        await self.run(script, selector, text)

    async def resize(self, width: int, height: int) -> None:
        """The page's own size, whatever a window's frame and least width are."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        command = {"cmd": "Emulation.setDeviceMetricsOverride", "params": metrics}
        await self._ask("POST", "/goog/cdp/execute", command)

    async def complaints(self) -> list[str]:
        """What the console of the browser holds since the last call: errors, and refusals by the policy."""
        entries = await self._ask("POST", "/se/log", {"type": "browser"})
        messages = [entry["message"] for entry in entries if entry["level"] in {"SEVERE", "WARNING"}]
        return [message for message in messages if "getImageData" not in message]  # a test's own looks

    async def picture(self, path: Path) -> None:
        content = base64.b64decode(await self._ask("GET", "/screenshot"))
        await asyncio.to_thread(path.write_bytes, content)


@contextmanager
def window(driver: str) -> Iterator[str]:
    """The address of a fresh window with a profile of its own."""
    wanted = {"goog:chromeOptions": {"args": OPTIONS.split()}, "goog:loggingPrefs": {"browser": "ALL"}}
    with httpx.Client(base_url=driver, timeout=60) as http:
        answer = http.post("/session", json={"capabilities": {"alwaysMatch": wanted}})
        assert answer.status_code == 200, answer.text
        session = answer.json()["value"]["sessionId"]
        try:
            yield f"{driver}/session/{session}"
        finally:
            http.delete(f"/session/{session}")
