"""The lines of one batch that are in the queue: posted, looked after, and collected once they are done.

A line's jobs have keys of their own, made of the batch and the custom id. So posting one again is no second
job: whoever goes on with a batch posts what is unfinished, and finds the answers that came meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from headway.gateway.constraint_checks import BUSY, ConstraintChecks
from headway.gateway.errors import ApiError, from_queueing
from headway.gateway.model_directory import ModelDirectory
from headway.queueing.admission import Admission
from headway.queueing.errors import (
    IdempotencyConflictError,
    InvalidJobError,
    NotAllowedError,
    QueueFullError,
    QueueingError,
    QueueUnavailableError,
    QuotaExceededError,
    UnknownJobError,
)
from headway.queueing.events import JobResult
from headway.queueing.ids import JobId, lane_of
from headway.queueing.protocol import Queue
from headway.services.batch.answered import Answered, LineName, answered, refused, undone
from headway.services.batch.asked import Asked, Terms, ask
from headway.services.batch.line import Line

_log = structlog.stdlib.get_logger("headway.batch")

LOOKS_AT_ONCE: Final = 64
MOST_BYTES: Final = 16 << 20
"""Of lines on their way, which are kept in case they must be posted again."""
LONGEST_REST_SECONDS: Final = 30.0
"""Of a batch whose tenant has used up a quota: its limits may be changed at any time."""


@dataclass(slots=True)
class _Flying:
    line: Line
    asked: Asked
    part: int
    posted: int = 0
    """Jobs posted so far."""
    results: dict[int, JobResult] = field(default_factory=dict[int, JobResult])

    def job_id(self, index: int) -> str:
        return str(JobId(lane_of(self.asked.jobs[index].model), self.asked.keys[index]))


class Flight:
    """Posts lines and collects their answers. Nothing here needs to be kept: the queue has it all."""

    def __init__(
        self,
        queue: Queue,
        endpoint: str,
        terms: Callable[[], Terms],
        models: ModelDirectory,
        forms: ConstraintChecks,
        *,
        clock: Callable[[], float],
        most: int,
    ) -> None:
        """``clock``: monotonic seconds; ``most``: lines on their way at a time."""
        self._queue = queue
        self._admission = Admission(queue)
        self._endpoint = endpoint
        self._terms = terms
        self._models = models
        self._forms = forms
        self._clock = clock
        self.most = most
        """Lines on their way at a time; those that are stay."""
        self._flying: list[_Flying] = []
        self._done: list[tuple[int, Answered]] = []
        self._rests_until = 0.0
        self.end_code: str | None = None
        """Set when the batch ends: what is not in the queue yet is not posted any more."""

    @property
    def size(self) -> int:
        """Lines on their way."""
        return len(self._flying)

    @property
    def rests(self) -> bool:
        """Whether the queue or a quota takes nothing more for now."""
        return self._clock() < self._rests_until

    @property
    def has_room(self) -> bool:
        """Whether another line may be on its way."""
        size_bytes = sum(flying.line.size_bytes for flying in self._flying)
        return len(self._flying) < self.most and size_bytes < MOST_BYTES

    async def prepare(self) -> None:
        """Learn how the models write; raises QueueUnavailableError."""
        await self._models.fleet()

    async def add(self, part: int, line: Line) -> None:
        """Take on a line: from here on its answer will come with ``collect``, whatever this raises."""
        try:
            asked = ask(line, self._endpoint, self._terms(), self._models.formats)
            if self.end_code is None:
                await self._check_form(asked)
        except ApiError as error:
            self._done.append((part, refused(self._name(line), error)))
            return
        except Exception:
            self._done.append((part, refused(self._name(line), self._unforeseen(line))))
            return
        flying = _Flying(line, asked, part)
        self._flying.append(flying)
        if self.end_code is None:
            await self._post(flying)

    async def _check_form(self, asked: Asked) -> None:
        """Raise ApiError 400 for a form that no answer can be held to: nothing of its line is queued."""
        try:
            await self._forms.check(asked.jobs, asked.constraint_param)
        except ApiError as error:
            if error.code != BUSY:  # too many are being checked: then the worker will say it
                raise

    async def end(self, code: str, grace: Callable[[], bool]) -> None:
        """The batch ends: what is in the queue is cancelled; what is done by then counts as done.

        ``grace`` says how long to wait for workers to let go of what they run.
        """
        self.end_code = code
        await self._look()  # what has ended by now counts, also if its cancel would be noted first
        self._flying = [flying for flying in self._flying if await self._is_ending(flying, code)]
        while self._flying and grace():
            await asyncio.sleep(0.05)
            await self._look()
        for flying in self._flying:
            self._done.append((flying.part, undone(self._name(flying.line), code)))
        self._flying.clear()

    async def _is_ending(self, flying: _Flying, code: str) -> bool:
        """Cancel a line's jobs; False: one of them was never posted, so the line has no answer."""
        for index in range(len(flying.asked.jobs)):
            try:
                await self._queue.cancel(flying.job_id(index), f"{code}: the batch ended")
            except UnknownJobError:
                self._done.append((flying.part, undone(self._name(flying.line), code)))
                return False
        return True

    async def collect(self) -> list[tuple[int, Answered]]:
        """The lines that are done, each with its part; waits for none. Raises QueueUnavailableError."""
        if self.end_code is None and not self.rests:
            for flying in [each for each in self._flying if each.posted < len(each.asked.jobs)]:
                await self._post(flying)
        return await self.collect_posted()

    async def collect_posted(self) -> list[tuple[int, Answered]]:
        """As ``collect``, and nothing more is posted."""
        await self._look()
        done, self._done = self._done, []
        return done

    async def _post(self, flying: _Flying) -> None:
        """Post the jobs of a line that are not posted yet, as far as the queue and the quotas allow."""
        jobs, keys = flying.asked.jobs, flying.asked.keys
        while flying.posted < len(jobs) and not self.rests:
            try:
                await self._models.require(jobs[0].model)
                await self._admission.submit(jobs[flying.posted], key=keys[flying.posted])
            except (QuotaExceededError, QueueFullError, QueueUnavailableError) as error:
                self._rest(error.retry_after_seconds)
            except (InvalidJobError, NotAllowedError, IdempotencyConflictError) as error:
                self._refuse(flying, from_queueing(error))
                return
            except ApiError as error:
                if error.status != 503:
                    self._refuse(flying, error)
                    return
                self._rest(1.0)  # no worker has ever been here: wait for the first
            except QueueingError:
                raise  # of the server, not of this line
            except Exception:
                self._refuse(flying, self._unforeseen(flying.line))
                return
            else:
                flying.posted += 1

    def _rest(self, seconds: float) -> None:
        self._rests_until = self._clock() + min(max(0.05, seconds), LONGEST_REST_SECONDS)

    def _refuse(self, flying: _Flying, error: ApiError) -> None:
        self._flying.remove(flying)
        self._done.append((flying.part, refused(self._name(flying.line), error)))

    async def _look(self) -> None:
        """Fetch what has ended."""
        for start in range(0, len(self._flying), LOOKS_AT_ONCE):
            some = self._flying[start : start + LOOKS_AT_ONCE]
            await asyncio.gather(*(self._look_at(flying) for flying in some))
        still: list[_Flying] = []
        for flying in self._flying:
            if len(flying.results) < len(flying.asked.jobs):
                still.append(flying)
            else:
                results = [flying.results[index] for index in range(len(flying.asked.jobs))]
                self._done.append((flying.part, self._answer(flying, results)))
        self._flying = still

    def _answer(self, flying: _Flying, results: Sequence[JobResult]) -> Answered:
        try:
            body = flying.asked.answer(results)
        except Exception:
            return refused(self._name(flying.line), self._unforeseen(flying.line))
        return answered(self._name(flying.line), results, body, self.end_code, flying.asked.names)

    def _unforeseen(self, line: Line) -> ApiError:
        """What becomes of a line that we fail on: its batch, and every try at it, must not fail with it."""
        _log.exception("line failed", batch=self._terms().batch_id, line=line.number)
        return ApiError(
            500,
            f"the batch service failed on line {line.number}; its log has the cause",
            code="internal_error",
        )

    def _name(self, line: Line) -> LineName:
        return LineName(self._terms().batch_id, line.custom_id)

    async def _look_at(self, flying: _Flying) -> None:
        count = len(flying.asked.jobs) if self.end_code is not None else flying.posted
        for index in range(count):
            if index in flying.results:
                continue
            try:
                result = await self._queue.result(flying.job_id(index))
            except UnknownJobError:
                # Its answer is not kept any longer, or a failover lost it: it is posted again.
                flying.posted = min(flying.posted, index)
                return
            if result is not None:
                flying.results[index] = result
