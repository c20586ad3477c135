"""What MemoryQueue keeps, and the moves of a job between its states."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from headway.queueing.bells import Bells
from headway.queueing.errors import IdempotencyConflictError, QueueFullError, UnknownJobError
from headway.queueing.events import Cursor, EndReason, JobError, JobResult, JobState
from headway.queueing.ids import JobId, lane_of
from headway.queueing.intake import Intake, read_body
from headway.queueing.memory_lane import Lane, Record
from headway.queueing.protocol import Finish, Reaped, Submitted
from headway.queueing.results import answer_so_far, end_event
from headway.queueing.settings import QueueSettings


class MemoryStore:
    """Jobs by lane, and every transition that producers, consumers and the reaper share."""

    def __init__(self, settings: QueueSettings, clock: Callable[[], float], rng: Random) -> None:
        self.settings = settings
        self.bells = Bells()
        self._clock = clock
        self._rng = rng
        self._lanes: dict[str, Lane] = {}
        self._idempotent: dict[tuple[str, str, str], tuple[str, str, int]] = {}

    def now_ms(self) -> int:
        """The queue's clock."""
        return int(self._clock() * 1000)

    def lane(self, name: str) -> Lane:
        """A lane, made at its first use."""
        return self._lanes.setdefault(name, Lane())

    def find(self, job_id: str) -> Record | None:
        """A job's record, or None if there is none or its retention has passed."""
        name = JobId.parse(job_id)
        lane = self.lane(name.lane)
        record = lane.records.get(name.key)
        if record is not None and self._is_past(record, self.settings.record_retention_seconds):
            del lane.records[name.key]
            return None
        return record

    def record(self, job_id: str) -> Record:
        """A job's record; raises UnknownJobError."""
        record = self.find(job_id)
        if record is None:
            raise UnknownJobError(f"no job {job_id}, or its retention time has passed")
        return record

    def has_stream(self, record: Record) -> bool:
        """Whether the job's token stream is still kept."""
        return not self._is_past(record, self.settings.stream_retention_seconds)

    def _is_past(self, record: Record, seconds: float) -> bool:
        return record.state is JobState.FINISHED and self.now_ms() >= record.finished_ms + int(seconds * 1000)

    def accept(self, model: str, key: str, body: bytes) -> Submitted:
        """Check a body and put it in the queue, once."""
        lane_name = lane_of(model)
        intake = read_body(body, model)
        job_id = str(JobId(lane_name, key))
        if self.find(job_id) is not None:
            return Submitted(job_id, created=False)
        earlier = self._earlier(lane_name, intake)
        if earlier is not None:
            return Submitted(earlier, created=False)
        lane = self.lane(lane_name)
        if lane.queued_jobs >= self.settings.max_queued_jobs:
            raise QueueFullError(
                f"{model} has {lane.queued_jobs} jobs waiting, as many as it may",
                retry_after_seconds=self.settings.full_retry_seconds,
            )
        record = self._new_record(job_id, model, body, intake)
        lane.records[key] = record
        lane.waiting[record.priority].append(record)
        self.bells.ring(f"work:{lane_name}")
        return Submitted(job_id, created=True)

    def _earlier(self, lane: str, intake: Intake) -> str | None:
        name = (lane, intake.tenant, intake.idempotency_key or "")
        job_id, fingerprint, until_ms = self._idempotent.get(name, ("", "", 0))
        if until_ms <= self.now_ms():
            return None
        if fingerprint != intake.fingerprint:
            raise IdempotencyConflictError(
                f"idempotency key {intake.idempotency_key!r} was used with a different body, by {job_id}"
            )
        return job_id

    def _new_record(self, job_id: str, model: str, body: bytes, intake: Intake) -> Record:
        now = self.now_ms()
        if intake.idempotency_key is not None:
            until = now + int(self.settings.idempotency_seconds * 1000)
            name = (JobId.parse(job_id).lane, intake.tenant, intake.idempotency_key)
            self._idempotent[name] = (job_id, intake.fingerprint, until)
        return Record(
            job_id=job_id,
            model=model,
            tenant=intake.tenant,
            priority=intake.priority,
            body=body,
            choices=intake.choices,
            seed=self._rng.getrandbits(48),
            created_ms=now,
            deadline_ms=now + int(intake.deadline_seconds * 1000) if intake.deadline_seconds else 0,
            on_disconnect=intake.on_disconnect,
            metadata=intake.metadata,
        )

    def requeue(self, record: Record) -> None:
        """Put a running job back, or end it if it was cancelled or its deadline has passed."""
        record.token, record.worker, record.state = "", None, JobState.QUEUED
        if self.end_if_due(record):
            return
        lane_name = JobId.parse(record.job_id).lane
        self.lane(lane_name).returned[record.priority].append(record)
        self.bells.ring(f"work:{lane_name}")

    def end_if_due(self, record: Record) -> bool:
        """End a job that waits, and was cancelled or is past its deadline; says whether it ended."""
        if record.cancel_reason is not None:
            self.end(record, EndReason.CANCELLED)
        elif 0 < record.deadline_ms <= self.now_ms():
            self.end(record, EndReason.DEADLINE)
        return record.state is JobState.FINISHED

    def end(self, record: Record, reason: EndReason, error: JobError | None = None) -> None:
        """End a job outside a worker: what was published so far becomes its answer."""
        result = answer_so_far(record.job_id, record.choices, record.committed, reason, error)
        cursor = Cursor(record.cursor.tokens, record.cursor.part + 1)
        self._close(record, result)
        record.end = end_event(result, cursor)
        if error is not None:
            self.lane(JobId.parse(record.job_id).lane).bury(record, error.code)
        self.bells.ring(record.job_id)

    def finish(self, record: Record, finish: Finish) -> None:
        """End a job as its worker says."""
        self._close(record, finish.result)
        end = finish.end
        if end.cursor <= record.cursor:
            cursor = Cursor(record.cursor.tokens, record.cursor.part + 1)
            end = type(end)(cursor, end.reason, end.choices, end.usage, end.error)
        record.end = end
        if finish.dead_letter is not None:
            self.lane(JobId.parse(record.job_id).lane).bury(record, finish.dead_letter)
        self.bells.ring(record.job_id)

    def _close(self, record: Record, result: JobResult) -> None:
        record.state = JobState.FINISHED
        record.finished_ms = self.now_ms()
        record.result = result

    def reap(self, lane_name: str) -> Reaped:
        """Take back jobs whose lease has ended, and end waiting ones whose deadline has passed."""
        now = self.now_ms()
        requeued: list[str] = []
        dead: list[str] = []
        lane = self.lane(lane_name)
        for record in sorted(lane.records.values(), key=lambda each: (each.lease_ms, each.job_id)):
            if record.state is JobState.RUNNING and record.lease_ms <= now:
                record.attempts += 1
                self._take_back(record, requeued, dead)
            elif record.state is JobState.QUEUED and 0 < record.deadline_ms <= now:
                lane.remove(record)
                self.end_if_due(record)
            elif self._is_past(record, self.settings.record_retention_seconds):
                del lane.records[JobId.parse(record.job_id).key]
        self._idempotent = {name: kept for name, kept in self._idempotent.items() if kept[2] > now}
        return Reaped(tuple(requeued), tuple(dead))

    def _take_back(self, record: Record, requeued: list[str], dead: list[str]) -> None:
        self.requeue(record)
        if record.state is JobState.FINISHED:
            return
        if record.attempts < self.settings.max_attempts:
            requeued.append(record.job_id)
            return
        self.lane(JobId.parse(record.job_id).lane).remove(record)
        self.end(record, EndReason.ERROR, too_many_attempts(record.attempts))
        dead.append(record.job_id)


def too_many_attempts(attempts: int) -> JobError:
    """The error of a job that was given up; RedisQueue's library words it alike."""
    return JobError("too_many_attempts", f"its worker was lost {attempts} times while running it")
