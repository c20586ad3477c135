"""A whole benchmark: look at the server, run point after point, put everything into one JSON object."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from headway.services.bench.chosen_target import make_target
from headway.services.bench.client_processes import LEAD_SECONDS, Begin, ClientProcesses, merged
from headway.services.bench.knee import Knee, is_believed, knee_of, next_rate
from headway.services.bench.load import Load, Loaded, Point, Share
from headway.services.bench.machine import machine_facts
from headway.services.bench.plan import MOST_REQUESTS, Work, make_work
from headway.services.bench.progress import Progress, point_name, point_sentence
from headway.services.bench.prompts import Count, PromptWriter, make_writer
from headway.services.bench.result import FORMAT, ROW_FIELDS, point_result, target_result, work_result
from headway.services.bench.settings import BenchSettings
from headway.services.bench.settle import Rest
from headway.services.bench.target import Target
from headway.services.bench.tokenizer_count import tokenizer_count
from headway.services.bench.worker_steps import fetch_records, fetch_workers, missing_steps
from headway.services.errors import ServiceError, UsageError
from headway.services.simulated_tenants import SimulatedTenant

BUSY: Final = 0.2
"""Share of the cores above which a machine is not quiet."""


class BenchRun:
    """Runs once; a signal ends it early with what it has."""

    def __init__(self, settings: BenchSettings, progress: Progress) -> None:
        self._settings = settings
        self._progress = progress
        self._target: Target = make_target(settings)
        self._clients: ClientProcesses | None = None
        self._notes: list[str] = []
        self._points: list[dict[str, Any]] = []
        self._knee: Knee | None = None
        self._is_interrupted = False

    async def run(self) -> dict[str, Any]:
        """Measure, and tell. Raises ServiceError for what cannot be measured."""
        settings = self._settings
        started = datetime.now(UTC).isoformat(timespec="seconds")
        machine = await asyncio.to_thread(machine_facts)
        check(settings)
        try:
            facts = await self._target.open()
            work = make_work(settings, facts.context_tokens)
            settings = self._settings = replace(settings, rates=work.rates)
            check(settings)
            workers = await asyncio.to_thread(fetch_workers, settings.worker_urls)
            writer = await self._writer(work)
            self._note(work, writer, machine)
            share = Share(0, settings.client_processes)
            if share.of > 1:
                told = replace(settings, model=facts.model)
                self._clients = ClientProcesses(told, writer, work.context_tokens)
                await self._clients.ready()
            await self._measure(Load(settings, self._target, work, writer, share), work.tenants)
        finally:
            if self._clients is not None:
                await asyncio.to_thread(self._clients.close)
            await self._target.close()
        return {
            "headway_bench": FORMAT,
            "started": started,
            "valid": all(not point["client"]["complaints"] for point in self._points),
            "interrupted": self._is_interrupted,
            "notes": self._notes,
            "settings": settings.shown(),
            "target": target_result(facts),
            "workers": workers,
            "machine": machine,
            "work": work_result(work, writer),
            "slos": settings.shown()["slos"],
            "knee": None if self._knee is None else self._knee.shown(),
            "request_fields": list(ROW_FIELDS),
            "points": sorted(self._points, key=lambda point: point["rate"] or point["concurrency"]),
        }

    async def _writer(self, work: Work) -> PromptWriter:
        settings = self._settings
        count: Count = self._target.count
        if settings.tokenizer is not None:
            count = tokenizer_count(settings.tokenizer, settings.api)
        return await make_writer(
            count, settings.texts, f"{settings.seed}", context_tokens=work.context_tokens
        )

    def _note(self, work: Work, writer: PromptWriter, machine: Mapping[str, Any]) -> None:
        if machine["busy_share"] > BUSY:
            share = f"{100 * machine['busy_share']:.0f} %"
            self._notes.append(f"{share} of this machine was busy before the run, with other work")
        if not writer.is_exact:
            self._notes.append(
                f"prompts are as long as asked only on average "
                f"({writer.unit.tokens_each:.3g} tokens a word): "
                "the JSON's prompts tell how far they are off"
            )
        if work.cut_rows:
            self._notes.append(
                f"{work.cut_rows} of {len(work.trace)} rows of the trace did not fit into the context of "
                f"{work.context_tokens} tokens and were shortened (--length-scale fit shortens all alike)"
            )
        longest = max(work.rates) * (self._settings.warmup + self._settings.duration)
        if work.replays and len(work.trace) < longest:
            self._notes.append(f"the trace has {len(work.trace)} requests: too few for {max(work.rates):g}/s")
        if not self._settings.worker_urls:
            self._notes.append(
                "how the server was set up, and its steps, are not in this result: "
                "--worker URL of a Headway worker's metrics port records them"
            )
        if self._settings.counts_events:
            self._notes.append("each event with text counts as one token (--count-events)")

    async def _measure(self, load: Load, tenants: tuple[SimulatedTenant, ...]) -> None:
        weights = {tenant.name: tenant.weight for tenant in tenants}
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop, load)
        try:
            rest = Rest(self._target.probe)
            for point in self._coming():
                if not await rest.settle(self._settings.drain):
                    self._notes.append(
                        f"the server had not come to rest before {point_name(point)} began: it was busy "
                        "with answers that nobody reads any more"
                    )
                loaded = await self._run_point(load, point)
                self._is_interrupted = loaded.is_interrupted
                shown = await self._shown(loaded, weights)
                self._points.append(shown)
                self._progress.say(point_sentence(shown))
                if loaded.is_interrupted:
                    return
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def _run_point(self, load: Load, point: Point) -> Loaded:
        """One point, by all client processes."""
        if self._clients is None:
            return await load.run(point, self._progress.watch)
        began_at = (time.monotonic() + LEAD_SECONDS, time.time() + LEAD_SECONDS)
        self._clients.begin(Begin(point, *began_at))
        own = await load.run(point, self._progress.watch, began_at)
        return merged([own, *await self._clients.collect()])

    def _stop(self, load: Load) -> None:
        """The first signal ends the point and keeps it; the second one is Python's own."""
        load.stop.set()
        if self._clients is not None:
            self._clients.stop()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(number)
        self._progress.say("stopping: what was measured is kept")

    def _coming(self) -> Iterator[Point]:
        """The points in order; a search for the knee looks at those before."""
        settings = self._settings
        if settings.concurrencies:
            for place, concurrency in enumerate(settings.concurrencies):
                yield Point(f"{place}", concurrency=concurrency)
            return
        tried = 0
        for rate in settings.rates:
            yield Point(f"{tried}", rate=rate)
            tried += 1
        if tried < 2 and not settings.finds_knee:
            return  # one rate says nothing of where it ends
        while True:
            self._knee = knee_of(self._points, settings.attainment)
            if not settings.finds_knee or tried >= settings.most_points:
                return
            if self._knee is None or not is_believed(self._points[-1]):
                self._notes.append("the search for the knee ended where the client was the bottleneck")
                return
            rate_or_none = next_rate(self._knee, settings.rates[0])
            if rate_or_none is None or rate_or_none * (settings.warmup + settings.duration) > MOST_REQUESTS:
                return
            yield Point(f"{tried}", rate=rate_or_none)
            tried += 1

    async def _shown(self, loaded: Loaded, weights: dict[str, float]) -> dict[str, Any]:
        seconds = time.monotonic() - loaded.began_monotonic
        records = await self._records(loaded.began_unix, seconds)
        for record in records:
            if told := missing_steps(record, loaded.start):
                self._notes.append(f"{point_name(loaded.point)}: {told}")
        return point_result(loaded, self._settings, weights, records)

    async def _records(self, began_unix: float, seconds: float) -> list[dict[str, Any]]:
        try:
            return await asyncio.to_thread(fetch_records, self._settings.worker_urls, began_unix, seconds)
        except ServiceError as error:
            # The point itself is measured; its worker may have been killed on purpose.
            self._notes.append(f"no step records: {error}")
            return []


def check(settings: BenchSettings) -> None:
    """Refuse what cannot be meant. Raises UsageError."""
    if settings.is_native and settings.slow_ratio:
        raise UsageError("slow readers read HTTP: --slow-readers goes with an http:// URL")
    if settings.concurrencies and min(settings.concurrencies) < settings.client_processes:
        raise UsageError(
            f"{min(settings.concurrencies)} clients are fewer than --client-processes: some would have none",
            hint=f"--client-processes {min(settings.concurrencies)} at most",
        )
    if settings.finds_knee and settings.concurrencies:
        raise UsageError("--find-knee searches rates: leave --concurrency out")
    if max(settings.rates) * (settings.warmup + settings.duration) > MOST_REQUESTS:
        raise UsageError(
            f"{max(settings.rates):g} requests a second for so long are more than {MOST_REQUESTS:,}",
            hint="a lower --rate, or a shorter --duration",
        )
    if settings.cancel_ratio + settings.slow_ratio > 0.9:
        raise UsageError(
            "--cancel-ratio and --slow-readers leave nobody to measure", hint="0.9 together at most"
        )
