"""Keeps one process alive: starts it, notices its death at once, starts it again after a pause.

A process that was never ready and ends by its own decision will do so again: that is an error to show, not
a loop to run. One that has served before is restarted for as long as ``headway up`` lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from headway.services.backoff import Backoff
from headway.services.errors import StartError
from headway.services.log_tail import last_words
from headway.services.process import ChildProcess, describe_exit

GIVE_UP_AFTER = 3
"""Deaths before the first readiness, when the process did not say itself that it cannot start."""
FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 10.0
HEALTHY_SECONDS = 60.0
"""A process that lived this long starts the pauses from the first one again."""
CANNOT_WORK = 2
"""The exit code with which our processes say that a restart cannot help."""


class KeeperState(StrEnum):
    """Where a kept process is in its life."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    RESTARTING = "restarting"
    STOPPED = "stopped"


class Stopped(StrEnum):
    """How a process ended that was asked to."""

    BEFORE = "it did not run any more"
    BY_ITSELF = "it stopped"
    KILLED = "it did not stop in time and was killed"


@dataclass(frozen=True, slots=True)
class Death:
    """One end that nobody asked for."""

    child: ChildProcess
    code: int
    was_ready: bool

    @property
    def reason(self) -> str:
        """In words."""
        return describe_exit(self.code)


class Keeper:
    """Runs one process; ``run`` returns never, and raises StartError when restarting is of no use."""

    def __init__(
        self,
        name: str,
        start: Callable[[], Awaitable[ChildProcess]],
        *,
        changed: Callable[[Keeper], None],
        died: Callable[[Keeper, Death, float], Awaitable[None]],
        serves_when_started: bool = False,
        is_vital: bool = True,
    ) -> None:
        """``changed`` hears of every new state; ``died`` is awaited before a restart, with the pause.

        What is not vital is started again even if it has never been ready.
        """
        self.started = asyncio.Event()
        """Set once the first start has worked."""
        self._serves_when_started = serves_when_started
        self.is_vital = is_vital
        self.name = name
        self.state = KeeperState.STARTING
        self.child: ChildProcess | None = None
        self._start = start
        self._changed = changed
        self._died = died
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self.has_served = False
        """Whether it was ever ready, in this life or an earlier one."""
        self._unready_deaths = 0

    @property
    def pid(self) -> int | None:
        """The id of the process that runs now."""
        return None if self.child is None else self.child.pid

    @property
    def is_ready(self) -> bool:
        """Whether its process has said that it serves."""
        return self.state is KeeperState.READY

    async def run(self) -> None:
        """Start the process, again and again, until cancelled; raises StartError."""
        while True:
            pause = await self._one_life()
            self._set(KeeperState.RESTARTING)
            await asyncio.sleep(pause)

    async def _one_life(self) -> float:
        """From start to death; returns the pause before the next start."""
        loop = asyncio.get_running_loop()
        self._set(KeeperState.STARTING)
        started = loop.time()
        try:
            self.child = child = await self._start()
        except StartError:
            if self.is_vital and not self.has_served:
                raise
            return self._backoff.next_seconds()
        self.started.set()
        if self._serves_when_started:
            self.mark_ready()
        code = await child.wait()
        death = Death(child, code, was_ready=self.is_ready)
        self.child = None
        self._check_hope(death)
        if loop.time() - started >= HEALTHY_SECONDS:
            self._backoff.reset()
        pause = self._backoff.next_seconds()
        await self._died(self, death, pause)
        return pause

    def _check_hope(self, death: Death) -> None:
        """Raise StartError when this process has never been ready and will not be."""
        if self.has_served or not self.is_vital:
            return
        self._unready_deaths += 1
        if death.code == CANNOT_WORK or self._unready_deaths >= GIVE_UP_AFTER:
            words = last_words(death.child.log_path, death.child.log_offset)
            message = f"{self.name} cannot start ({death.reason})"
            raise StartError(
                "\n  ".join([message + (":" if words else ""), *words]), hint=_hint(death, self.name)
            )

    async def stop(self, timeout_seconds: float) -> Stopped:
        """End its process once ``run`` has been cancelled: ask first, kill after the timeout."""
        child = self.child
        if child is None or child.has_ended:
            return Stopped.BEFORE
        self._set(KeeperState.DRAINING)
        went_by_itself = await child.stop(timeout_seconds)
        self.child = None
        self._set(KeeperState.STOPPED)
        return Stopped.BY_ITSELF if went_by_itself else Stopped.KILLED

    def mark_ready(self) -> None:
        """Its process serves."""
        if self.state is KeeperState.STARTING and self.child is not None:
            self.has_served = True
            self._set(KeeperState.READY)

    def mark(self, state: KeeperState) -> None:
        """Take over a state that the process reports itself, or that we caused."""
        self._set(state)

    def _set(self, state: KeeperState) -> None:
        if state is not self.state or state is KeeperState.STARTING:
            self.state = state
            self._changed(self)


def _hint(death: Death, name: str) -> str | None:
    if death.code == -9:
        return "the kernel kills like this when memory runs out: pass a smaller --kv-cache, such as 256MiB"
    return None if death.code == CANNOT_WORK else f"read {death.child.log_path}, which holds all {name} said"
