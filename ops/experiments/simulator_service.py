"""The other half of ``simulator_error.py``: the whole service, HTTP to SSE, instead of the engine alone.

``headway up`` on a free port serves this process's own client. Steps are read from its worker while it
serves loads of all sizes; what lies around them is measured on requests that come alone.

Half of the time the clients of a load rest after each answer, about as long as it took. The cores belong to
the gateway, the queue's server and the client as well, and what these take of a step depends on how much of
the time anybody rests: steps under clients that never do were a quarter longer than those of requests that
come by themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))

from peer_client import WrongAnswerError, ask
from peer_figures import Timed
from peer_process import free_port, stop
from peer_work import Work

from headway.engine.values import FinishReason, RequestKey, Sampled
from headway.services.calibrate import calibration_of_live
from headway.services.children import headway_command
from headway.services.hardware import StepWork
from headway.services.live_steps import LiveSteps
from headway.services.settings import WorkerSettings
from headway.services.simulated_device import Device, device_of
from headway.services.simulation_run import Journey, SimulationRun
from headway.services.trace_file import fetch_trace
from headway.services.traffic import Demand

COUNTS = (1, 2, 4, 8, 16, 32)
RESTLESS_SHARE = 0.3
"""Of the time in which clients ask again at once: few services are that full."""
ALONE_TOKENS = 24
ALONE = 12
"""Short requests one after another, for what lies around a step."""


@contextlib.contextmanager
def serving(worker: WorkerSettings, folder: Path) -> Iterator[Service]:
    """The service with one worker of these settings, ready to answer."""
    port, metrics = free_port(), free_port()
    options = ["--port", str(port), "--metrics-port", str(metrics), "--state-dir", str(folder / "state")]
    options += ["--kv-cache", str(worker.kv_cache_bytes), "--max-sequences", str(worker.max_sequences)]
    options += ["--model", worker.model, "--served-name", "model", "--no-batch"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            headway_command("up", *options), stdout=log, stderr=log, text=True, start_new_session=True
        )
        try:
            yield Service(port, f"http://127.0.0.1:{metrics}")
        finally:
            stop(process)


class Service:
    """A client of one service, and an onlooker of its worker."""

    def __init__(self, port: int, metrics: str) -> None:
        self._port = port
        self.live = LiveSteps(lambda: fetch_trace(metrics))
        self._random = random.Random(5)
        self._deadline = time.monotonic() + 60.0

    def wait_ready(self) -> None:
        """Return after the first answer."""
        while True:
            try:
                self._ask_alone()
            except (OSError, WrongAnswerError, asyncio.IncompleteReadError):
                if time.monotonic() > self._deadline:
                    raise
                time.sleep(0.3)
            else:
                return

    def measure(self, seconds: float) -> None:
        """Put load of all sizes on it, and read its steps meanwhile."""

        async def both() -> None:
            looking = asyncio.create_task(asyncio.to_thread(self.live.collect, seconds, lambda _: None))
            await self._load(seconds)
            self._facts = await looking

        asyncio.run(both())

    def device(self, seed: int) -> tuple[Device, float]:
        """What was measured so far as a device, and the fit's median error."""
        calibration = calibration_of_live(self.live.steps, self._facts, "service")
        work = StepWork(ALONE_TOKENS, ALONE_TOKENS, ALONE_TOKENS**2 / 2, 1)
        alone = statistics.median(self._ask_alone() for _ in range(ALONE))
        before = max(0.0, alone - calibration.line.seconds(work))
        return device_of(replace(calibration, before_seconds=before), seed), calibration.error_median

    def run(self, demands: Sequence[Demand]) -> SimulationRun:
        """Answer everything, each from when it comes."""
        run = SimulationRun()
        base = time.monotonic()

        async def one(demand: Demand) -> None:
            await asyncio.sleep(max(0.0, base + demand.seconds - time.monotonic()))
            run.journeys.append(journey_of(demand, await self._ask(demand), base))

        async def all_of_them() -> None:
            async with asyncio.TaskGroup() as tasks:
                for demand in demands:
                    tasks.create_task(one(demand))

        asyncio.run(all_of_them())
        run.end_seconds = max(journey.finish_seconds or 0.0 for journey in run.journeys)
        run.extra = {"preemptions_swap": 0.0, "preemptions_recompute": 0.0}
        return run

    async def _load(self, seconds: float) -> None:
        rounds = ((False, RESTLESS_SHARE), (True, 1 - RESTLESS_SHARE))
        for rests, share in rounds:
            for place, count in enumerate(self._random.sample(COUNTS, len(COUNTS))):
                # In every other load all prompts are short: else many at a time would be prefills only.
                clients = [
                    asyncio.create_task(self._client(is_short=place % 2 == 1, rests=rests))
                    for _ in range(count)
                ]
                await asyncio.sleep(share * seconds / len(COUNTS))
                for client in clients:
                    client.cancel()
                await asyncio.gather(*clients, return_exceptions=True)

    async def _client(self, *, is_short: bool, rests: bool) -> None:
        """Ask again and again, lengths evenly on a logarithmic scale."""
        while True:
            prompt = round(4 * (12 if is_short else 450) ** self._random.random())
            asked = time.monotonic()
            await self._ask(Demand(0.0, "default", 0, prompt, round(2 * 80 ** self._random.random())))
            if rests:
                await asyncio.sleep(self._random.expovariate(1 / (time.monotonic() - asked)))

    async def _ask(self, demand: Demand) -> Timed:
        ids = tuple(self._random.choices(range(1000, 40_000), k=demand.prompt_tokens))
        return await ask(self._port, "model", Work(ids, demand.answer_tokens))

    def _ask_alone(self) -> float:
        """TTFT of one short request."""
        timed = asyncio.run(self._ask(Demand(0.0, "default", 0, ALONE_TOKENS, 3)))
        return timed.events[0] - timed.asked


def journey_of(demand: Demand, timed: Timed, base: float) -> Journey:
    """As a simulation would tell it; a client that sent late makes nobody look fast."""
    key = RequestKey("", 0)
    return Journey(
        demand,
        demand.seconds,
        last_position=0,
        replies=(Sampled(key, 0), Sampled(key, 0)),
        first_token_seconds=timed.events[0] - base,
        last_token_seconds=timed.events[-1] - base,
        finish_seconds=timed.events[-1] - base,
        finish_reason=FinishReason.LENGTH,
        tokens=timed.tokens,
    )
