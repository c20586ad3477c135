"""One worker around a loaded model: its engine thread, and the loops that connect it with the queue.

queue ─► claim loop ─► claim table ─► engine thread ─► publisher ─► queue
            renew, heartbeat, reap, watchdog: beside it, see ``worker_loops.py``
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from headway.queueing.protocol import Queue
from headway.queueing.worker_card import WorkerCard
from headway.services.claim_loop import ClaimLoop
from headway.services.claim_table import ClaimTable
from headway.services.drain import drain, hand_over
from headway.services.engine_thread import EngineThread
from headway.services.logs import get_logger
from headway.services.memory import read_memory
from headway.services.metrics import WorkerMetrics
from headway.services.model_host import ModelHost, class_objectives
from headway.services.pages_ahead import PagesAhead
from headway.services.policies import jobs_ahead
from headway.services.preemption_log import PreemptionLog
from headway.services.publisher import Publisher
from headway.services.settings import WorkerSettings
from headway.services.step_show import show_loop
from headway.services.step_view import StepViewer
from headway.services.tenant_loops import keep_loop, settle_loop, weights_loop
from headway.services.trace import chrome_trace
from headway.services.trace_facts import trace_facts
from headway.services.worker_card import worker_card
from headway.services.worker_loops import heartbeat_loop, look_loop, reap_loop, renew_loop, watchdog_loop

if TYPE_CHECKING:
    from headway.services.job_traces import JobTraces  # needs OpenTelemetry

_log = get_logger("worker")

UNHEALTHY_SHARE: Final = 0.5
"""/healthz turns red at this share of the watchdog's patience, so that somebody can look before it acts."""
NOW_SECONDS: Final = 0.5
"""What a second signal still allows for handing jobs back."""


class EngineDiedError(Exception):
    """The engine's thread ended with the exception in ``__cause__``; nothing that it holds can be trusted."""


class Worker:
    """Serves one model until asked to stop. Lives in one event loop; make it inside that loop."""

    def __init__(
        self,
        queue: Queue,
        host: ModelHost,
        settings: WorkerSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        traces: JobTraces | None = None,
    ) -> None:
        self.metrics = WorkerMetrics(
            settings.worker_id,
            host.model.name,
            timeline=host.engine.timeline,
            objectives=class_objectives(settings),
        )
        self.metrics.steps.weigh(dict(settings.tenant_weights))
        self.metrics.observe_computation(host.computation)
        self.state = "ready"
        self._queue = queue
        self._host = host
        self._settings = settings
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._engine_died = asyncio.Event()
        self._to_write = asyncio.Event()
        self._engine = EngineThread(
            host.engine,
            notify=self._notify,
            observe_step=self.metrics.stepped,
            clock=clock,
            unacknowledged_tokens=settings.unacknowledged_tokens,
        )
        self._table = ClaimTable(
            self._engine,
            host.model,
            self.metrics,
            clock,
            self._to_write,
            max_stream_bytes=settings.max_stream_bytes,
            traces=traces,
        )
        self._publisher = Publisher(queue, self._table, self._engine, self.metrics, clock, traces=traces)
        self._claims = ClaimLoop(
            queue,
            self._table,
            self._engine,
            host.model,
            worker_id=settings.worker_id,
            max_sequences=settings.max_sequences,
            jobs_ahead=jobs_ahead(settings.policy, settings.max_sequences),
            isolate_after_attempts=settings.isolate_after_attempts,
        )
        self._own_weights = dict(settings.tenant_weights)
        self._rate_at = (clock(), 0)

    async def run(self, stop: asyncio.Event, stop_now: asyncio.Event) -> None:
        """Work until ``stop``, then drain; ``stop_now`` cuts the drain short. Raises EngineDiedError."""
        name, lease = self._host.model.name, self._settings.lease_seconds
        self._engine.start()
        ahead = self._pages_ahead()
        try:
            async with asyncio.TaskGroup() as tasks:
                beside = [
                    tasks.create_task(self._watch_engine()),
                    tasks.create_task(watchdog_loop(self._engine, self._settings.hung_after_seconds)),
                    tasks.create_task(reap_loop(self._queue, name, lease)),
                    tasks.create_task(renew_loop(self._queue, self._table, lease)),
                    tasks.create_task(settle_loop(self._queue, name)),
                    tasks.create_task(keep_loop(self._queue)),
                    tasks.create_task(weights_loop(self._queue, name, self._own_weights, self._weigh)),
                    tasks.create_task(self._publisher.run()),
                    tasks.create_task(PreemptionLog(self._host.engine.preemptions, _log).run()),
                    tasks.create_task(look_loop(self.metrics)),
                    tasks.create_task(
                        heartbeat_loop(self._queue, self.card, self._settings.heartbeat_seconds)
                    ),
                    tasks.create_task(self._show_steps()),
                ]
                claiming = tasks.create_task(self._claims.run())
                await stop.wait()
                await self._stop(claiming, stop_now)
                for task in beside:
                    task.cancel()
        finally:
            if ahead is not None:
                ahead.stop()
            # Last: until here it may still bring the end of a job that is being handed back.
            await asyncio.to_thread(self._engine.stop, NOW_SECONDS)

    async def _stop(self, claiming: asyncio.Task[None], stop_now: asyncio.Event) -> None:
        """Order: claims first, or the drain would never end; then the jobs.

        Leases, heartbeats and writes go on beside it until no job is left: a lease that ends in the middle of
        a drain would give the job to a second worker.
        """
        self.state = "draining"
        self._claims.stop()
        self._table.close_door()
        draining = asyncio.create_task(
            drain(self._table, self._engine, self._settings.drain_seconds, self._clock)
        )
        hurried = asyncio.create_task(stop_now.wait())
        await asyncio.wait((draining, hurried), return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        if not draining.done():
            draining.cancel()
            await hand_over(self._table, NOW_SECONDS)
        # A claim that was under way at the signal may have brought jobs meanwhile: they go back too.
        await asyncio.wait((claiming,), timeout=NOW_SECONDS)
        claiming.cancel()
        await hand_over(self._table, NOW_SECONDS)

    async def _show_steps(self) -> None:
        viewer = StepViewer(self._host.engine.timeline, self._clock)
        await show_loop(
            self._queue.step_views,
            self._settings.worker_id,
            viewer,
            lambda: self._engine.load.kv_blocks_total,
        )

    def _pages_ahead(self) -> PagesAhead | None:
        """Under way, where the pool's memory comes page by page."""
        if self._host.pages is None:
            return None

        def used_blocks() -> int:
            load = self._engine.load
            return load.kv_blocks_used + int(load.extra["kv_blocks_cached"])

        ahead = PagesAhead(self._host.pages, used_blocks, lambda: read_memory().available_bytes)
        ahead.start()
        return ahead

    def _weigh(self, weights: Mapping[str, float]) -> None:
        self._engine.weigh(weights)
        self.metrics.steps.weigh(weights)

    async def _watch_engine(self) -> None:
        await self._engine_died.wait()
        raise EngineDiedError("the engine's thread died") from self._engine.failure

    def _notify(self) -> None:
        """From the engine's thread: there are outputs, or there will never be any again."""
        # RuntimeError: the loop is closed; nobody is left who could care.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._noticed)

    def _noticed(self) -> None:
        self._to_write.set()
        if self._engine.failure is not None:
            self._engine_died.set()

    # -- what others see ------------------------------------------------------------------------------

    def card(self) -> WorkerCard:
        """What this worker tells the fleet."""
        return worker_card(
            self._settings,
            self._host.model.name,
            self.state,
            created_unix=self._host.loaded_unix,
            max_model_len=self._host.model.max_model_len,
            tool_format=self._host.tool_format,
            reasoning_format=self._host.reasoning_format,
            computation=self._host.kernels,
            load=self._engine.load,
            step_age_seconds=self._engine.step_age_seconds(),
            tokens_per_second=self._tokens_per_second(),
        )

    def _tokens_per_second(self) -> float:
        """Tokens published since the last card, per second."""
        now, tokens = self._clock(), self.metrics.completion_tokens
        since, before = self._rate_at
        self._rate_at = (now, tokens)
        return (tokens - before) / max(now - since, 1e-3)

    def health(self) -> tuple[bool, str]:
        """Whether the engine turns, for /healthz."""
        age = self._engine.step_age_seconds()
        if self._engine.failure is not None:
            return False, "the engine died"
        if age > self._settings.hung_after_seconds * UNHEALTHY_SHARE:
            return False, f"the running step has taken {age:.0f} s"
        return True, "ok"

    def readiness(self) -> tuple[bool, str]:
        """Whether it takes jobs, for /readyz."""
        healthy, word = self.health()
        return healthy and self.state == "ready", word if not healthy else self.state

    def render_metrics(self) -> bytes:
        """The scrape, with gauges as of now."""
        self.metrics.observe_load(
            self._engine.load, jobs=len(self._table), step_age_seconds=self._engine.step_age_seconds()
        )
        profile = self._host.engine.profile
        self.metrics.observe_profile(
            {part.value: seconds for part, seconds in profile.seconds.items()},
            steps=profile.steps,
            tokens=profile.tokens,
            idle_seconds=self._engine.idle_seconds(),
            # A scrape is answered on the I/O loop's thread.
            loop_cpu_seconds=time.thread_time(),
        )
        return self.metrics.render()

    def render_trace(self) -> bytes:
        """The last steps and requests as a Chrome trace; safe beside the engine's thread."""
        trace = chrome_trace([(self._settings.worker_id, self._host.engine.timeline)])
        trace["otherData"] = trace_facts(self._settings, self._host, self._clock)
        return json.dumps(trace).encode()
