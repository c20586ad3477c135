"""What a batch costs those who wait: time to first token of chats, beside a batch and alone.

    .venv/bin/python ops/bench/batch_beside.py [--rounds 6] [--rate REQUESTS_PER_SECOND] [--json FILE]

A whole service runs: server, gateway, one worker of the demo model, one batch service. A round is a batch of
200 lines through /v1/batches with chats beside it until it is done, then the same chats at the same times
(Poisson, seeded) without it. The rate uses LOAD of what the worker does with chats alone, measured first.
Ends with 1 if the 99th percentile of the time to first token grows by more than LIMIT, with 2 if there were
too few chats to say.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import httpx
from batch_figures import Arm, Chat, report
from reader_service import Service, free_port

MODEL: Final = "smollm2-135m"
LINES: Final = 200
LOAD: Final = 0.4
CALIBRATION_SECONDS: Final = 8.0
CALIBRATION_STREAMS: Final = 16
PATIENCE_SECONDS: Final = 120.0
WORDS: Final = ("tram", "river", "lamp", "garden", "clock", "paper", "window", "bread", "music", "winter")


@dataclass(frozen=True)
class Work:
    """A chat that somebody waits for."""

    at_seconds: float
    """After the arm's start."""
    prompt: str
    tokens: int


@dataclass
class Bench:
    """The service under test and its client."""

    http: httpx.AsyncClient
    rng: random.Random
    asked: int = 0

    def work(self, at_seconds: float) -> Work:
        """A chat of 20 to 200 words, answered with 8 to 32 tokens."""
        words = " ".join(self.rng.choices(WORDS, k=self.rng.randint(20, 200)))
        return Work(at_seconds, f"Tell me about these: {words}", self.rng.randint(8, 32))

    def arrivals(self, rate: float, seconds: float) -> list[Work]:
        """Poisson, from the bench's seed."""
        work: list[Work] = []
        at = self.rng.expovariate(rate)
        while at < seconds:
            work.append(self.work(at))
            at += self.rng.expovariate(rate)
        return work

    async def chat(self, work: Work, began: float) -> Chat:
        """One streamed answer; times from when it was due, so that a late client hides nothing."""
        body = self.body_of(work) | {"stream": True}
        times: list[float] = []
        async with self.http.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                raise SystemExit(f"a chat was refused: {(await response.aread()).decode()[:300]}")
            times += [
                time.perf_counter() - began - work.at_seconds
                async for line in response.aiter_lines()
                if line.startswith("data: {") and _has_text(line)
            ]
        return Chat(times[0], tuple(later - earlier for earlier, later in pairwise(times)))

    def body_of(self, work: Work) -> dict[str, object]:
        """Answered with exactly so many tokens; no two begin alike: no arm finds the other's cached."""
        self.asked += 1
        return {
            "model": MODEL,
            "messages": [
                {"role": "system", "content": f"Conversation {self.asked}."},
                {"role": "user", "content": work.prompt},
            ],
            "max_tokens": work.tokens,
            "ignore_eos": True,
            "temperature": 0,
        }

    async def capacity(self) -> float:
        """Chats a second with a few streams always at work."""
        began, done = time.perf_counter(), 0

        async def one_after_the_other() -> None:
            nonlocal done
            while (now := time.perf_counter() - began) < CALIBRATION_SECONDS:
                await self.chat(self.work(now), began)
                done += 1

        await asyncio.gather(*(one_after_the_other() for _ in range(CALIBRATION_STREAMS)))
        return done / (time.perf_counter() - began)

    async def arm(self, schedule: list[Work], batch_id: str | None, *, until_seconds: float) -> Arm:
        """Chats at their times, until the batch is done or for so long."""
        began = time.perf_counter()
        chats: list[asyncio.Task[Chat]] = []
        ended = None if batch_id is None else asyncio.create_task(self.end_of(batch_id))
        for work in schedule:
            pause = work.at_seconds - (time.perf_counter() - began)
            if ended is not None:
                await asyncio.wait({ended}, timeout=max(0.0, pause))
                if ended.done():
                    break
            elif work.at_seconds > until_seconds:
                break
            else:
                await asyncio.sleep(max(0.0, pause))
            chats.append(asyncio.create_task(self.chat(work, began)))
        else:
            if ended is not None:
                raise SystemExit("the batch was not done in time: give it fewer chats beside it (--rate)")
        seconds = time.perf_counter() - began
        return Arm(await asyncio.gather(*chats), seconds, 0 if batch_id is None else LINES)

    async def post_batch(self) -> str:
        """A batch of LINES lines; its id."""
        named = {"method": "POST", "url": "/v1/chat/completions"}
        lines = [
            named | {"custom_id": f"{number}", "body": self.body_of(self.work(0.0))}
            for number in range(LINES)
        ]
        content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        posted = await self.http.post(
            "/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"}
        )
        file = posted.raise_for_status().json()
        asked = {"input_file_id": file["id"], "endpoint": "/v1/chat/completions", "completion_window": "1h"}
        made = (await self.http.post("/v1/batches", json=asked)).raise_for_status().json()
        return str(made["id"])

    async def end_of(self, batch_id: str) -> None:
        """Return once all its lines are answered."""
        while True:
            batch: dict[str, Any] = (await self.http.get(f"/v1/batches/{batch_id}")).json()
            if batch["status"] == "completed" and batch["request_counts"]["completed"] == LINES:
                return
            if batch["status"] not in {"validating", "in_progress", "finalizing"}:
                raise SystemExit(f"the batch ended otherwise: {batch}")
            await asyncio.sleep(0.25)


def _has_text(line: str) -> bool:
    chunk = json.loads(line.removeprefix("data: "))
    return any(choice["delta"].get("content") for choice in chunk["choices"])


async def measure(port: int, options: argparse.Namespace) -> tuple[float, dict[str, list[Arm]]]:
    """The rate, and the arms of all rounds."""
    limits = httpx.Limits(max_connections=None)
    url = f"http://127.0.0.1:{port}"
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_SECONDS, limits=limits) as http:
        bench = Bench(http, random.Random(options.seed))
        rate = options.rate or LOAD * await bench.capacity()
        print(f"{rate:.2f} chats/s", flush=True)
        arms: dict[str, list[Arm]] = {"beside": [], "alone": []}
        for number in range(options.rounds):
            bench.rng = random.Random(f"{options.seed}:{number}")  # however long the calibration took
            schedule = bench.arrivals(rate, PATIENCE_SECONDS)
            beside = await bench.arm(schedule, await bench.post_batch(), until_seconds=PATIENCE_SECONDS)
            alone = await bench.arm(schedule, None, until_seconds=beside.seconds)
            print(f"round {number + 1}: {len(beside.chats)} chats in {beside.seconds:.1f} s", flush=True)
            arms["beside"].append(beside)
            arms["alone"].append(alone)
    return rate, arms


def main() -> int:
    """0, 1 for a missed limit, 2 for too few chats."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--rate", type=float, default=None, help="chats a second; default: measured")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--worker", default="", help="more options of the worker, as at a shell")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    with TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        files = str(folder / "files")
        service = Service(folder, stack, "--files", files)
        port = free_port()
        worker = ["worker", "--model", MODEL, "--metrics-port", str(port), *options.worker.split()]
        service.add("worker", *worker)
        service.add("batch", "batch", "worker", "--files", files)
        service.wait_for(port, "/readyz")
        rate, arms = asyncio.run(measure(service.port, options))
    figures, verdict = report(arms, rate)
    print("\n".join(figures.lines()))
    if options.json is not None:
        # In the order in which they came: the first of an arm meet a batch that had the worker to itself.
        each = {
            name: [[chat.ttft for chat in arm.chats] for arm in of_name] for name, of_name in arms.items()
        }
        whole = asdict(figures) | {"ttft_seconds": each}
        options.json.write_text(json.dumps(whole, indent=1), encoding="utf-8")
    return verdict


if __name__ == "__main__":
    os.environ.setdefault("HEADWAY_LOG_FORMAT", "json")
    sys.exit(main())
