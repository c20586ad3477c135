"""``headway up``: starts everything, says what happens, keeps it alive, stops it in order."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING

from headway.queueing.errors import QueueingError
from headway.services.connection import checked_queue, close_queue
from headway.services.embedded import EmbeddedServer
from headway.services.errors import ServiceError
from headway.services.fleet import Fleet
from headway.services.journal import Journal
from headway.services.keeper import Death, Keeper, KeeperState, Stopped
from headway.services.listener import answers_http
from headway.services.log_tail import MAX_WORDS, LogFollower
from headway.services.settings import UpSettings, mask_password
from headway.services.state import StateDir, UpState
from headway.services.stop_signals import StopSignals
from headway.services.terminal import Terminal

if TYPE_CHECKING:  # its validation library is imported later, while the children load
    from headway.queueing.protocol import Queue

WATCH_STARTING_SECONDS = 0.05
WATCH_SERVING_SECONDS = 1.0
PROBE_SECONDS = 4.0
"""A gateway that starts answers the first probe when it is ready: the probe waits in the socket's backlog."""
HUNG_PROBES = 3
"""Probes in a row without an answer after which a gateway that has served is taken for hung."""
LOG_LOOK_SECONDS = 0.25
SLOW_START_SECONDS = 15.0
"""From then on warnings of processes that are not ready yet are shown too; before, only if they fail."""


CONNECT_WAITS_SECONDS = 2.0
BATCH_WAITS_SECONDS = 15.0
"""The batch service starts once everything else is ready, since its start takes a core for a second; but it
tells of ends, too (webhooks), so it does not wait for ever where a model takes minutes to load."""


class Supervisor:
    """Runs a fleet on this machine until a signal, or a process that cannot start, ends it."""

    def __init__(
        self,
        settings: UpSettings,
        state: StateDir,
        listener: socket.socket,
        server: EmbeddedServer | None,
        terminal: Terminal,
    ) -> None:
        """``state``: a dir that this process holds; ``server`` None: an external one."""
        self.fleet = Fleet(settings, state, listener, server, changed=self._changed, died=self._died)
        self._state = state
        self._terminal = terminal
        self._journal = Journal(state.logs / "up.log")
        self._signals = StopSignals()
        self._began = time.monotonic()
        self._deaths: dict[str, float] = {}
        self._left_behind = state.read()
        self._queue: Queue | None = None
        self._queue_answers = False
        self._answers = asyncio.Event()
        """Set once the gateway has answered for the first time."""
        self._has_served = asyncio.Event()
        self._written: UpState | None = None

    async def run(self, on_ready: Callable[[], None]) -> int:
        """Serve until asked to stop; 0 after an orderly stop, minus the signal when asked twice.

        ``on_ready`` is called once, when everything is ready for the first time. Raises ServiceError when
        something cannot start, after everything else has been stopped.
        """
        with self._signals.caught():
            serving = asyncio.ensure_future(self._serve(on_ready))
            asked = asyncio.ensure_future(self._signals.first.wait())
            await asyncio.wait({serving, asked}, return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            serving.cancel()
            outcome = (await asyncio.gather(serving, asked, return_exceptions=True))[0]
            is_orderly = await self._stop()
        if isinstance(outcome, Exception):
            raise outcome
        return 0 if is_orderly else -int(self._signals.last or 0)

    # -- serve ----------------------------------------------------------------------------------------

    async def _serve(self, on_ready: Callable[[], None]) -> None:
        """Start everything and keep it alive; ends only by an error or by being cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow_logs())
                if self.fleet.redis is not None:
                    tasks.create_task(self.fleet.redis.run())
                    await self.fleet.redis.started.wait()
                for keeper in self.fleet.vital:
                    if keeper is not self.fleet.redis:
                        tasks.create_task(keeper.run())
                tasks.create_task(self._watch_gateway())
                # Connecting means importing the Redis client: once the gateway has let go of its core.
                await asyncio.wait({tasks.create_task(self._answers.wait())}, timeout=CONNECT_WAITS_SECONDS)
                await self._connect()
                tasks.create_task(self._watch_workers())
                serving = tasks.create_task(self._has_served.wait())
                await asyncio.wait({serving}, timeout=BATCH_WAITS_SECONDS)
                if self.fleet.batch is not None:
                    tasks.create_task(self.fleet.batch.run())
                await serving
                on_ready()
        except ExceptionGroup as group:
            # Not `except*`: Python before 3.11.4 (Debian 12) wraps what is raised there in a group again.
            expected, unexpected = group.split(ServiceError)
            if expected is None or unexpected is not None:
                raise
            raise expected.exceptions[0] from None

    async def _connect(self) -> None:
        """Open the queue, and free the jobs of workers that were killed with the last ``headway up`` here."""
        self._queue, warnings = await checked_queue(self.fleet.redis_url)
        for warning in warnings:
            self._terminal.event("redis", "warning", warning, colour="yellow")
        if self.fleet.redis is None:
            self._terminal.event(
                "redis", "ready", f"{self._elapsed()}   {mask_password(self.fleet.redis_url)}"
            )
        for worker in () if self._left_behind is None else self._left_behind.workers:
            if worker.mark is None or not worker.mark.lives:
                await self._expire(worker.model, worker.worker_id)

    async def _watch_gateway(self) -> None:
        """See the gateway become ready, and end it when it hangs: only then is it started again."""
        gateway = self.fleet.gateway
        silences = 0
        while True:
            child = gateway.child
            answers = child is not None and await answers_http(self.fleet.url, "/", PROBE_SECONDS)
            if answers and gateway.child is child:
                gateway.mark_ready()
                self._answers.set()
            has_hung = child is not None and gateway.child is child and gateway.is_ready and not answers
            silences = silences + 1 if has_hung else 0
            if silences == HUNG_PROBES and child is not None:
                seconds = HUNG_PROBES * PROBE_SECONDS
                self._terminal.event(
                    "gateway", "hung", f"no answer for {seconds:.0f} s; ending it", colour="red"
                )
                self._journal.write("hung", level="error", process="gateway", seconds=seconds)
                child.kill()
            await asyncio.sleep(WATCH_SERVING_SECONDS if gateway.is_ready else WATCH_STARTING_SECONDS)

    async def _watch_workers(self) -> None:
        assert self._queue is not None, "connected before it is watched"
        while True:
            try:
                cards = await self._queue.workers()
            except QueueingError:
                self._queue_answers = False
            else:
                self._queue_answers = True
                self.fleet.apply_cards(cards)
            self._publish()
            settled = all(worker.is_ready for worker in self.fleet.workers) and self._queue_answers
            await asyncio.sleep(WATCH_SERVING_SECONDS if settled else WATCH_STARTING_SECONDS)

    async def _follow_logs(self) -> None:
        followers = {keeper: LogFollower(self.fleet.log_path(keeper)) for keeper in self.fleet.keepers}
        while True:
            for keeper, follower in followers.items():
                is_slow = time.monotonic() - self._began > SLOW_START_SECONDS
                if keeper.has_served or not keeper.is_vital or is_slow:
                    self._show_loud(keeper, follower)
                follower.bound()
            await asyncio.sleep(LOG_LOOK_SECONDS)

    def _show_loud(self, keeper: Keeper, follower: LogFollower) -> None:
        loud = (line for line in follower.new_lines() if line.is_loud)
        for line in islice(loud, MAX_WORDS):
            level = line.level or "says"
            self._terminal.event(
                keeper.name, level, line.message, colour="yellow" if level == "warning" else "red"
            )
        if any(True for _ in loud):
            self._terminal.event(keeper.name, "…", f"more in {follower.path}", colour="dim")

    # -- what the keepers tell ------------------------------------------------------------------------

    def _changed(self, keeper: Keeper) -> None:
        self._journal.write("state", process=keeper.name, state=keeper.state.value, pid=keeper.pid)
        if keeper.state is KeeperState.READY:
            places = {"redis": self.fleet.redis_url, "gateway": self.fleet.url, "batch": "/v1/batches"}
            place = places.get(keeper.name, self.fleet.model)
            self._terminal.event(
                keeper.name, "ready", f"{self._elapsed(keeper)}   {place}  (pid {keeper.pid})"
            )
            if all(one.is_ready for one in self.fleet.vital):
                self._has_served.set()
        self._publish()

    async def _died(self, keeper: Keeper, death: Death, pause_seconds: float) -> None:
        self._deaths[keeper.name] = time.monotonic()
        self._publish()
        detail = f"{death.reason}; starts again in {pause_seconds:.1f} s"
        self._journal.write("died", level="error", process=keeper.name, reason=death.reason)
        self._terminal.event(keeper.name, "died", detail, colour="red")
        if keeper in self.fleet.workers:
            await self._expire(self.fleet.model, self.fleet.worker_id(keeper))

    async def _expire(self, model: str, worker_id: str) -> None:
        """End a dead worker's leases now; without the server's help they end by themselves, later."""
        if self._queue is None:
            return
        try:
            moved = await self._queue.expire_worker(model, worker_id)
            await self._queue.farewell(worker_id)
        except QueueingError as error:
            self._journal.write("expire failed", level="warning", worker=worker_id, error=str(error))
            return
        if moved:
            self._journal.write("jobs move on", worker=worker_id, jobs=moved)
            jobs = "1 running job" if moved == 1 else f"{moved} running jobs"
            self._terminal.event("redis", "moved", f"{jobs} of {worker_id}, to the next free worker")

    def _publish(self) -> None:
        """Write the state file when something in it has changed."""
        is_ready = self._has_served.is_set() and self._queue_answers and self.fleet.can_answer
        state = self.fleet.snapshot(ready=is_ready)
        if state != self._written:
            try:
                self._state.write(state)
            except OSError as error:  # a full disk: serving matters more
                self._journal.write("state file", level="error", error=str(error))
                return
            self._written = state

    def _elapsed(self, keeper: Keeper | None = None) -> str:
        """Since the start of it all; for a process that was restarted, since its death."""
        since = self._began if keeper is None else self._deaths.get(keeper.name, self._began)
        return f"{time.monotonic() - since:5.1f} s"

    # -- stop -----------------------------------------------------------------------------------------

    async def _stop(self) -> bool:
        """Stop everything; False when a second signal made it a stop at once."""
        impatience = self._signals.second if self._signals.first.is_set() else self._signals.first
        if self._signals.first.is_set():
            self._terminal.line("\n  stopping: open answers may finish; Ctrl-C again stops at once")
        in_order = asyncio.ensure_future(self._stop_in_order())
        asked = asyncio.ensure_future(impatience.wait())
        await asyncio.wait({in_order, asked}, return_when=asyncio.FIRST_COMPLETED)
        is_orderly = in_order.done()
        for task in (in_order, asked):
            task.cancel()
        outcome = (await asyncio.gather(in_order, asked, return_exceptions=True))[0]
        if not is_orderly or isinstance(outcome, Exception):
            self._terminal.line("  stopping at once")
            self.fleet.close_door()
            self._publish()  # the next ``up`` frees the jobs of the workers named there
            await self.fleet.end_now()
        else:
            self._state.forget()
        if self.fleet.server is not None:
            self.fleet.server.tidy()
        self._journal.write("stopped", in_order=is_orderly)
        if self._queue is not None:
            await close_queue(self._queue)
        if isinstance(outcome, Exception):
            raise outcome
        return is_orderly

    async def _stop_in_order(self) -> None:
        self._terminal.line()
        self.fleet.close_door()
        for keepers, seconds in self.fleet.stop_order():
            outcomes = await asyncio.gather(*(keeper.stop(seconds) for keeper in keepers))
            for keeper, outcome in zip(keepers, outcomes, strict=True):
                await self._stopped(keeper, outcome)

    async def _stopped(self, keeper: Keeper, outcome: Stopped) -> None:
        if outcome is Stopped.BY_ITSELF:
            self._terminal.event(keeper.name, "stopped", "", colour="dim")
        elif outcome is Stopped.KILLED:
            self._terminal.event(keeper.name, "killed", "it did not stop in time", colour="red")
            if keeper in self.fleet.workers:
                await self._expire(self.fleet.model, self.fleet.worker_id(keeper))
