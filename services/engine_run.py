"""Requests answered by a real engine in this process, on the real clock: what a simulation is compared with.

As a worker's engine thread does it: what has arrived is added between two steps, and outputs are read after
each. No queue and no reader. The result has the form of a simulated run, so the same report reads both.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from headway.engine.engine import Engine
from headway.engine.errors import RequestError
from headway.engine.values import Output, RequestKey, RequestSpec, Sampled, Sampling
from headway.services.simulation_run import GAP_SECONDS, Journey, SimulationRun
from headway.services.traffic import Demand

_SAMPLING: Final = Sampling(temperature=0.0, ignore_eos=True)
_LONGEST_SLEEP_SECONDS: Final = 0.1


@dataclass(slots=True)
class EngineRun:
    """Runs demands on one engine, one set after another; ids and prompts never repeat."""

    engine: Engine
    vocab_size: int
    tpot_seconds: float = 0.05
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    seed: int = 0
    _serial: int = field(default=0, init=False)

    def run(self, demands: Iterable[Demand]) -> SimulationRun:
        """Answer everything, each from when it comes; returns when all have ended."""
        coming = sorted(demands, key=lambda demand: demand.seconds)[::-1]
        journeys: dict[str, Journey] = {}
        run = SimulationRun()
        before = self.engine.load
        base = self.clock()
        while coming or self.engine.has_work:
            now = self.clock()
            while coming and coming[-1].seconds <= now - base:
                self._add(coming.pop(), base, journeys)
            if not self._is_due(now):
                self._wait(now, base + coming[-1].seconds if coming else None)
                continue
            outputs = self.engine.step(now)
            ended = self.clock()
            run.busy_seconds += ended - now
            self._read(outputs, journeys, run, ended - base)
        run.journeys = list(journeys.values())
        run.end_seconds = max((journey.finish_seconds or 0.0 for journey in run.journeys), default=0.0)
        after = self.engine.load
        run.steps = after.steps - before.steps
        run.extra = {name: value - before.extra.get(name, 0.0) for name, value in after.extra.items()}
        return run

    def _is_due(self, now: float) -> bool:
        due = self.engine.next_deadline
        return self.engine.has_runnable or (due is not None and now >= due)

    def _wait(self, now: float, next_arrival: float | None) -> None:
        moments = [moment for moment in (next_arrival, self.engine.next_deadline) if moment is not None]
        self.sleep(max(0.0, min([moment - now for moment in moments] + [_LONGEST_SLEEP_SECONDS])))

    def _add(self, demand: Demand, base: float, journeys: dict[str, Journey]) -> None:
        self._serial += 1
        key = RequestKey(f"run-{self.seed}-{self._serial}", 0)
        journey = Journey(
            demand,
            demand.seconds,
            last_position=demand.prompt_tokens + demand.answer_tokens - 1,
            replies=(Sampled(key, 0), Sampled(key, 0)),
        )
        journeys[key.request_id] = journey
        try:
            self.engine.add(self._spec(key, demand, base + demand.seconds))
        except RequestError:
            journey.is_refused = True

    def _spec(self, key: RequestKey, demand: Demand, arrival: float) -> RequestSpec:
        shared = random.Random(f"{self.seed} {demand.tenant}")
        own = random.Random(f"{self.seed} {self._serial}")
        prefix = demand.shared_prefix_tokens
        return RequestSpec(
            key.request_id,
            key.epoch,
            self._ids(shared, prefix) + self._ids(own, demand.prompt_tokens - prefix),
            _SAMPLING,
            demand.answer_tokens,
            tenant=demand.tenant,
            priority=demand.priority,
            arrival_seconds=arrival,
        )

    def _ids(self, drawn: random.Random, count: int) -> tuple[int, ...]:
        return tuple(drawn.choices(range(self.vocab_size), k=count))

    def _read(
        self, outputs: Sequence[Output], journeys: dict[str, Journey], run: SimulationRun, now: float
    ) -> None:
        for output in outputs:
            journey = journeys[output.key.request_id]
            for _ in output.token_ids:
                if journey.first_token_seconds is None:
                    journey.first_token_seconds = now
                else:
                    run.gaps[round((now - journey.last_token_seconds) / GAP_SECONDS)] += 1
                lag = now - journey.arrival_seconds - journey.tokens * self.tpot_seconds
                journey.lag_seconds = max(journey.lag_seconds, lag)
                journey.tokens += 1
                journey.last_token_seconds = now
            if output.finish_reason is not None:
                journey.finish_reason = output.finish_reason
                journey.finish_seconds = now
