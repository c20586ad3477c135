"""The processes of one ``headway up``: the embedded server, the gateway, the workers, and their stop.

Order of the stop, and why: the gateway first, so that no new work comes in and open answers may finish;
then the workers, which hand back what they cannot finish; the server last, since both write to it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from headway.services.children import batch_command, gateway_command, worker_command
from headway.services.embedded import EmbeddedServer
from headway.services.keeper import Death, Keeper, KeeperState
from headway.services.listener import url_of
from headway.services.process import ChildProcess, ProcessMark
from headway.services.readiness import ready_pipe
from headway.services.settings import UpSettings, new_worker_id, served_name
from headway.services.state import RunningBatch, RunningPart, RunningWorker, StateDir, UpState

if TYPE_CHECKING:  # its validation library is imported later, while the children load
    from headway.queueing.worker_card import WorkerCard

SERVER_STOP_SECONDS = 10.0
SERVER_FLUSH_SECONDS = 1.0
KILL_GRACE_SECONDS = 5.0
"""Beyond its own drain time, what a process gets to be gone before it is killed."""


class Fleet:
    """Holds one keeper per process; knows how each is started, what runs now, and how all of it ends."""

    def __init__(
        self,
        settings: UpSettings,
        state: StateDir,
        listener: socket.socket,
        server: EmbeddedServer | None,
        *,
        changed: Callable[[Keeper], None],
        died: Callable[[Keeper, Death, float], Awaitable[None]],
    ) -> None:
        """``server`` None: an external one, at ``settings.redis_url``."""
        self._settings = settings
        self._logs = state.logs
        self._listener = listener
        self.url = url_of(listener)
        self.model = served_name(settings.model, settings.served_name)
        self.server = server
        self._started_unix = int(time.time())
        self._up = ProcessMark.of(os.getpid())
        self._worker_ids: dict[str, str] = {}
        self.redis = (
            None
            if server is None
            else Keeper("redis", server.start, changed=changed, died=died, serves_when_started=True)
        )
        self.gateway = Keeper("gateway", self._start_gateway, changed=changed, died=died)
        self.batch = (
            # Without it jobs are answered all the same: its troubles end nothing else.
            Keeper("batch", self._start_batch, changed=changed, died=died, is_vital=False)
            if settings.has_batch
            else None
        )
        names = ["worker"] if settings.workers == 1 else [f"worker {i + 1}" for i in range(settings.workers)]
        self.workers = [
            Keeper(name, self._worker_starter(name, index), changed=changed, died=died)
            for index, name in enumerate(names)
        ]

    @property
    def redis_url(self) -> str:
        """Where everyone finds the queue."""
        if self.server is not None:
            return self.server.url
        assert self._settings.redis_url is not None, "without an embedded server there is a URL"
        return self._settings.redis_url

    @property
    def keepers(self) -> list[Keeper]:
        """All of them, in the order of their start."""
        return [*([] if self.redis is None else [self.redis]), *self._doors, *self.workers]

    @property
    def vital(self) -> list[Keeper]:
        """All without which no job is answered."""
        return [keeper for keeper in self.keepers if keeper.is_vital]

    @property
    def _doors(self) -> list[Keeper]:
        """What brings jobs in."""
        return [self.gateway] if self.batch is None else [self.gateway, self.batch]

    def log_path(self, keeper: Keeper) -> Path:
        """Where a process's output goes."""
        return self._logs / f"{keeper.name.replace(' ', '-')}.log"

    @property
    def can_answer(self) -> bool:
        """Whether a job that is posted now finds all that it needs, as far as the processes go."""
        return (
            (self.redis is None or self.redis.is_ready)
            and self.gateway.is_ready
            and any(worker.is_ready for worker in self.workers)
        )

    def worker_id(self, keeper: Keeper) -> str:
        """The id of the worker that this keeper runs or ran last; empty before its first start."""
        return self._worker_ids.get(keeper.name, "")

    async def _start_gateway(self) -> ChildProcess:
        descriptor = self._listener.fileno()
        return ChildProcess.spawn(
            "gateway",
            gateway_command(self._settings, descriptor),
            log_path=self._logs / "gateway.log",
            pass_fds=(descriptor,),
            extra_env={"HEADWAY_REDIS_URL": self.redis_url},
        )

    async def _start_batch(self) -> ChildProcess:
        with ready_pipe(self._batch_serves) as descriptor:
            return ChildProcess.spawn(
                "batch",
                batch_command(self._settings, descriptor),
                log_path=self._logs / "batch.log",
                pass_fds=(descriptor,),
                extra_env={"HEADWAY_REDIS_URL": self.redis_url},
            )

    def _batch_serves(self) -> None:
        assert self.batch is not None, "it has said so itself"
        self.batch.mark_ready()

    def _worker_starter(self, name: str, index: int) -> Callable[[], Awaitable[ChildProcess]]:
        async def start() -> ChildProcess:
            # The tether fills in the process id, which is known only once the process exists.
            template = new_worker_id("{pid}")
            child = ChildProcess.spawn(
                name,
                worker_command(self._settings, template, index),
                log_path=self._logs / f"{name.replace(' ', '-')}.log",
                extra_env={"HEADWAY_REDIS_URL": self.redis_url},
            )
            self._worker_ids[name] = template.replace("{pid}", str(child.pid))
            return child

        return start

    def apply_cards(self, cards: Sequence[WorkerCard]) -> None:
        """Take over what the workers say about themselves in the registry."""
        states = {card.worker_id: card.state for card in cards}
        for keeper in self.workers:
            if keeper.child is None:
                continue
            match states.get(self.worker_id(keeper)):
                case "ready":
                    keeper.mark_ready()
                case "draining":
                    keeper.mark(KeeperState.DRAINING)
                case _:
                    pass  # still starting, or not heard of for a moment

    def snapshot(self, *, ready: bool) -> UpState:
        """What runs now, for the state file."""
        assert self._up is not None, "this process lives; without /proc no child could have been started"
        server_child = None if self.redis is None else self.redis.child
        return UpState(
            up=self._up,
            started_unix=self._started_unix,
            model=self.model,
            ready=ready,
            gateway=RunningPart(_mark(self.gateway.child), self.url),
            redis=RunningPart(_mark(server_child), self.redis_url),
            is_redis_ours=self.redis is not None,
            workers=tuple(
                RunningWorker(self.worker_id(keeper), _mark(keeper.child), self.model, keeper.state.value)
                for keeper in self.workers
            ),
            batch=None
            if self.batch is None
            else RunningBatch(_mark(self.batch.child), self.batch.state.value),
        )

    def close_door(self) -> None:
        """Take no more connections than those that the gateway has."""
        self._listener.close()

    def stop_order(self) -> list[tuple[list[Keeper], float]]:
        """Who is stopped together, in order, and how long each may take before it is killed."""
        served = self._settings.drain_seconds + KILL_GRACE_SECONDS
        stages = [(self._doors, served), (self.workers, served)]
        return stages if self.redis is None else [*stages, ([self.redis], SERVER_STOP_SECONDS)]

    async def end_now(self) -> None:
        """Kill what is left; the server alone may still flush, which takes a tenth of a second."""
        for keeper in [*self._doors, *self.workers]:
            if keeper.child is not None:
                keeper.child.kill()
        if self.redis is not None:
            await self.redis.stop(SERVER_FLUSH_SECONDS)


def _mark(child: ChildProcess | None) -> ProcessMark | None:
    return None if child is None or child.has_ended else child.mark
