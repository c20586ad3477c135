"""The lines of one batch in the hands of one process: unread, on their way, done but not committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import structlog

from headway import __version__
from headway.gateway.constraint_checks import ConstraintChecks
from headway.gateway.model_directory import ModelDirectory
from headway.queueing.batch import Checked, EndState, NewBatch, Tally, total
from headway.queueing.batch_store import BatchStore
from headway.queueing.protocol import Queue
from headway.services.batch.answered import LineName, undone
from headway.services.batch.asked import Terms
from headway.services.batch.batch_metrics import BatchMetrics
from headway.services.batch.flight import Flight
from headway.services.batch.line import Line, raw_lines, read_line
from headway.services.batch.open_part import OpenPart
from headway.services.batch.room import lines_in_flight
from headway.services.batch.settings import StepSettings
from headway.services.batch.storage import OpenFile, Storage
from headway.services.constraint import constraint_refusal

_log = structlog.stdlib.get_logger("headway.batch")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a turn works with. ``clock``: monotonic seconds; ``stops``: whether this process is to end;
    ``metrics``: the process's."""

    queue: Queue
    storage: Storage
    settings: StepSettings
    clock: Callable[[], float]
    stops: Callable[[], bool]
    metrics: BatchMetrics = field(default_factory=BatchMetrics)

    @property
    def store(self) -> BatchStore:
        """The records."""
        return self.queue.batch_store


class Work:
    """Posts lines as there is room, and commits each part once it is whole."""

    def __init__(self, around: Surroundings, asked: NewBatch, checked: Checked, opened: OpenFile) -> None:
        self._around = around
        self._store = around.store
        self._asked = asked
        self._checked = checked
        self._input = opened
        self._todo: deque[int] = deque()
        self._open: dict[int, OpenPart] = {}
        self._committed = Tally()
        self._seconds_left = 0.0
        self._now_unix = 0
        self._shown = Tally()
        self._models = models = ModelDirectory(around.queue, ttl_seconds=2.0, clock=around.clock)
        self._forms = ConstraintChecks(constraint_refusal)
        self._flight = Flight(
            around.queue,
            asked.endpoint,
            self._terms,
            models,
            self._forms,
            clock=around.clock,
            most=around.settings.most_in_flight,
        )

    async def begin(self) -> None:
        """See what is committed."""
        parts = await self._store.parts(self._asked.batch_id)
        self._todo = deque(n for n in range(len(self._checked.offsets)) if n not in parts)
        self._committed = total(part.tally for part in parts.values())

    @property
    def is_done(self) -> bool:
        """Whether every part is committed."""
        return not self._todo and not self._open

    @property
    def in_flight(self) -> int:
        """Lines in the queue."""
        return self._flight.size

    async def end_asked_for(self) -> EndState | None:
        """Whether the batch must end before it is done, and how. Shows how far it is, too."""
        batch_id = self._asked.batch_id
        now_ms = await self._store.now_ms()
        self._seconds_left, self._now_unix = (self._asked.expires_ms - now_ms) / 1000, now_ms // 1000
        shown = self._committed + total(part.tally for part in self._open.values())
        if shown != self._shown:
            await self._store.show_progress(batch_id, shown)
            self._shown = shown
        await self._leave_room(now_ms)
        batch = await self._store.batch(batch_id)
        if batch is not None and batch.cancelling_ms:
            return "cancelled"
        return "expired" if self._seconds_left <= 0 else None

    async def _leave_room(self, now_ms: int) -> None:
        """Have no more lines in the queue than is right beside what others ask."""
        fleet = await self._models.fleet()
        models = fleet.served if self._checked.model is None else (self._checked.model,)
        most = self._around.settings.most_in_flight
        self._flight.most = await lines_in_flight(self._around.queue, models, fleet.workers, most, now_ms)

    async def advance(self) -> int:
        """Post what there is room for, collect what is done, commit what is whole; how many lines it was."""
        await self._flight.prepare()
        while self._flight.has_room and not self._flight.rests:
            if not await self._add_next(self._around.settings.open_parts):
                break
        return await self._collect()

    async def end(self, state: EndState) -> None:
        """Bring every line to its end: what is done counts, what is not has an error that says so.

        No more lines are at hand at a time than while the batch runs. Only the first parts that are not
        committed can have jobs in the queue: parts are begun in order, and never more than ``open_parts`` of
        them before one is committed.
        """
        code = "batch_cancelled" if state == "cancelled" else "batch_expired"
        _log.info("batch ends early", batch=self._asked.batch_id, state=state)
        self._flight.end_code = code
        await self._flight.prepare()
        until = self._around.clock() + self._around.settings.cancel_seconds
        most = self._around.settings.open_parts
        begun = max(0, most - len(self._open))
        self._todo, never_begun = deque(islice(self._todo, begun)), deque(islice(self._todo, begun, None))
        while not self.is_done:
            while self._flight.has_room and await self._add_next(most):
                pass
            await self._flight.end(code, lambda: self._around.clock() < until)
            await self._collect()
        self._todo = never_begun
        while self._todo:
            number = self._todo.popleft()
            part = self._open[number] = OpenPart(self._asked.batch_id, number, self._lines(number))
            while (line := part.next_line()) is not None:
                part.take(undone(LineName(self._asked.batch_id, line.custom_id), code))
            await self._commit(part)

    async def keep_answers(self) -> None:
        """The input is gone: commit the answers that are there of parts which will never be whole."""
        for number, line in await self._flight.collect_posted():
            self._open[number].take(line)
        for part in [part for part in self._open.values() if part.tally != Tally()]:
            await self._commit(part)

    def close(self) -> None:
        """Let go of what is open."""
        self._forms.close()
        for part in self._open.values():
            part.close()

    async def _add_next(self, most_open: int) -> bool:
        """Take on the next line of the parts that are open, or of a new one; False: there is none."""
        while True:
            part = next((part for part in self._open.values() if not part.is_read), None)
            if part is None:
                if not self._todo or len(self._open) >= most_open:
                    return False
                number = self._todo.popleft()
                part = self._open[number] = OpenPart(self._asked.batch_id, number, self._lines(number))
            line = part.next_line()
            if line is not None:
                await self._flight.add(part.number, line)
                self._around.metrics.posted()
                return True

    async def _collect(self) -> int:
        """Take what is done, and commit what is whole; how many lines were done."""
        done = await self._flight.collect()
        for number, line in done:
            self._open[number].take(line)
        for part in [part for part in self._open.values() if part.is_done]:
            await self._commit(part)
        return len(done)

    async def _commit(self, part: OpenPart) -> None:
        is_ours = await part.commit(self._around.storage, self._store)
        self._committed += part.tally
        del self._open[part.number]
        part.close()
        if is_ours:
            self._around.metrics.committed(part.tally)
        else:  # another process works on this batch as well: go by what is committed
            await self.begin_again()

    async def begin_again(self) -> None:
        """Leave out parts that others have committed meanwhile."""
        parts = await self._store.parts(self._asked.batch_id)
        self._todo = deque(n for n in self._todo if n not in parts)
        self._committed = total(part.tally for part in parts.values())

    def _lines(self, number: int) -> Iterator[Line]:
        """The lines of a part, read as they are asked for; of one part after the other."""
        at, count = self._checked.offsets[number], self._checked.lines_of(number)
        first = number * self._checked.part_lines + 1
        self._input.seek(at)
        for raw in islice(raw_lines(self._input, number=first), count):
            yield read_line(raw, self._asked.endpoint)

    def _terms(self) -> Terms:
        return Terms(
            self._asked.batch_id,
            self._asked.tenant,
            self._seconds_left,
            self._now_unix,
            f"headway-{__version__}",
        )
