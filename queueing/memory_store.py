"""What MemoryQueue keeps, and the moves of a job between its states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final

from headway.queueing.bells import Bells
from headway.queueing.claims import Finish
from headway.queueing.errors import IdempotencyConflictError, unknown_job
from headway.queueing.events import Cursor, EndReason, JobError, JobResult, JobState, PastClaim
from headway.queueing.ids import JobId, lane_of
from headway.queueing.intake import Intake, read_body
from headway.queueing.memory_bounds import refuse_if_full
from headway.queueing.memory_lane import Lane
from headway.queueing.memory_record import Record
from headway.queueing.messages import Priority
from headway.queueing.protocol import Reaped, Submitted
from headway.queueing.results import answer_so_far, end_event
from headway.queueing.settings import QueueSettings

WHOLE: Final = frozenset({EndReason.STOP, EndReason.LENGTH})
"""Ends of whole answers; what was cut off does not tell how long answers get."""


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

    def lane_with(self, record: Record) -> Lane:
        """A job's lane."""
        return self.lane(JobId.parse(record.job_id).lane)

    def find(self, job_id: str) -> Record | None:
        """A job's record, or None if there is none or its retention has passed."""
        name = JobId.parse(job_id)
        lane = self.lane(name.lane)
        record = lane.records.get(name.key)
        if record is not None and self._is_past(record, self.settings.record_retention_seconds):
            del lane.records[name.key]
            return None
        return record

    def forget(self, job_id: str) -> None:
        """Keep nothing of a job."""
        name = JobId.parse(job_id)
        self.lane(name.lane).records.pop(name.key, None)

    def record(self, job_id: str) -> Record:
        """A job's record; raises UnknownJobError."""
        record = self.find(job_id)
        if record is None:
            raise unknown_job(job_id)
        return record

    def has_stream(self, record: Record) -> bool:
        """Whether the job's token stream is still kept."""
        return not self._is_past(record, self.settings.stream_retention_seconds)

    def _is_past(self, record: Record, seconds: float) -> bool:
        return record.state is JobState.FINISHED and self.now_ms() >= record.finished_ms + int(seconds * 1000)

    # -- in -------------------------------------------------------------------------------------------

    def accept(
        self, model: str, key: str, body: bytes, reserved: str = "", asked_body: bytes | None = None
    ) -> Submitted:
        """Check a body and put it in the queue, once."""
        lane_name, job_id = lane_of(model), str(JobId(lane_of(model), key))
        repeated = self.repeat_of(model, key, body, asked_body)
        if repeated is not None:
            return repeated
        intake = _intake(model, body, asked_body)
        refuse_if_full(lane_name, self.lane(lane_name), intake, self.settings, self._clock() * 1000)
        if intake.idempotency_key is not None:
            until = self.now_ms() + int(self.settings.idempotency_seconds * 1000)
            self._idempotent[lane_name, intake.tenant, intake.idempotency_key] = (
                job_id,
                intake.fingerprint,
                until,
            )
        record = self._new_record(job_id, model, body, intake)
        record.reserved = reserved
        return self._enqueue(record)

    def repeat_of(
        self, model: str, key: str, body: bytes, asked_body: bytes | None = None
    ) -> Submitted | None:
        """The job accepted earlier that this one repeats, or None."""
        intake = _intake(model, body, asked_body)
        job_id = str(JobId(lane_of(model), key))
        if self.find(job_id) is not None:
            return Submitted(job_id, created=False)
        earlier = self._earlier(lane_of(model), intake)
        return None if earlier is None else Submitted(earlier, created=False)

    def accept_again(self, model: str, key: str, body: bytes, old_id: str) -> Submitted:
        """Put a body in the queue once more, as a new job; its idempotency key does not count."""
        lane_name = lane_of(model)
        job_id = str(JobId(lane_name, key))
        if self.find(job_id) is not None:
            return Submitted(job_id, created=False)
        intake = read_body(body, model)
        refuse_if_full(lane_name, self.lane(lane_name), intake, self.settings, self._clock() * 1000)
        record = self._new_record(job_id, model, body, intake)
        record.retry_of = old_id
        return self._enqueue(record)

    def _enqueue(self, record: Record) -> Submitted:
        name = JobId.parse(record.job_id)
        lane = self.lane(name.lane)
        lane.records[name.key] = record
        lane.add(record, self.now_ms())
        self.bells.ring(f"work:{name.lane}")
        return Submitted(record.job_id, created=True)

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
        exact_ms = self._clock() * 1000
        patience_ms = (intake.due_seconds or self.settings.patience_seconds) * 1000
        now = self.now_ms()
        return Record(
            job_id=job_id,
            model=model,
            tenant=intake.tenant,
            priority=intake.priority,
            body=body,
            cost=intake.cost,
            choices=intake.choices,
            seed=self._rng.getrandbits(48),
            created_ms=now,
            place=exact_ms + patience_ms,
            deadline_ms=now + int(intake.deadline_seconds * 1000) if intake.deadline_seconds else 0,
            on_disconnect=intake.on_disconnect,
            metadata=intake.metadata,
        )

    # -- out ------------------------------------------------------------------------------------------

    def take(self, lane_name: str, worker_id: str, least: Priority) -> Record | None:
        """Claim the job whose turn it is, of this class or a better one; those that are due end here.

        None: nothing waits.
        """
        lane = self.lane(lane_name)
        while (head := lane.choose(self.now_ms(), self.settings, least)) is not None:
            record = head.record
            lane.take(head, self.now_ms())
            if not self.end_if_due(record):
                self._open(record, worker_id)
                record.charged = max(0, lane.expected_of(record) - record.paid)
                lane.charge(record, record.charged)
                return record
        return None

    def _open(self, record: Record, worker_id: str) -> None:
        now = self.now_ms()
        record.state = JobState.RUNNING
        record.token = f"{self._rng.getrandbits(128):032x}"
        record.epoch += 1
        record.worker = worker_id
        record.claimed_ms = now
        record.started_ms = record.started_ms or now
        record.lease_ms = now + int(self.settings.lease_seconds * 1000)

    def requeue(self, record: Record, outcome: str) -> None:
        """Take a running job from its worker: back in front of its band, or to its end if that is due."""
        self._unclaim(record, outcome)
        if self.end_if_due(record):
            return
        lane_name = JobId.parse(record.job_id).lane
        self.lane(lane_name).returned[record.priority].append(record)
        self.bells.ring(f"work:{lane_name}")

    def _unclaim(self, record: Record, outcome: str) -> None:
        service = record.service_so_far
        self.lane_with(record).charge(record, service - record.charged)
        record.paid, record.charged = record.paid + service, 0
        tokens = record.cursor.tokens
        record.history.append(
            PastClaim(record.worker or "", record.claimed_ms, self.now_ms(), outcome, tokens)
        )
        record.token, record.worker, record.state = "", None, JobState.QUEUED

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
        record.end = end_event(result, Cursor(record.cursor.tokens, record.cursor.part + 1))
        self._close(record, result, error.code if error else None, 0)

    def finish(self, record: Record, finish: Finish) -> None:
        """End a job as its worker says."""
        end = finish.end
        if end.cursor <= record.cursor:
            cursor = Cursor(record.cursor.tokens, record.cursor.part + 1)
            end = type(end)(cursor, end.reason, end.choices, end.usage, end.error)
        record.end = end
        lane = self.lane_with(record)
        lane.charge(record, finish.service - record.charged)
        if end.reason in WHOLE:
            lane.learn(record)
        self._close(record, finish.result, finish.dead_letter, end.usage.prompt_tokens)

    def _close(self, record: Record, result: JobResult, dead_letter: str | None, prompt_tokens: int) -> None:
        assert record.end is not None
        record.state = JobState.FINISHED
        record.finished_ms = self.now_ms()
        record.result = result
        lane = self.lane_with(record)
        lane.tell(record, record.end.reason, prompt_tokens)
        if dead_letter is not None:
            lane.bury(record, dead_letter)
        self.bells.ring(record.job_id)

    # -- upkeep ---------------------------------------------------------------------------------------

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
                lane.remove(record, now)
                self.end_if_due(record)
            elif self._is_past(record, self.settings.record_retention_seconds):
                del lane.records[JobId.parse(record.job_id).key]
        lane.forget_tenants(now)
        self._idempotent = {name: kept for name, kept in self._idempotent.items() if kept[2] > now}
        return Reaped(tuple(requeued), tuple(dead))

    def _take_back(self, record: Record, requeued: list[str], dead: list[str]) -> None:
        if record.attempts < self.settings.max_attempts:
            self.requeue(record, "lost")
            if record.state is JobState.QUEUED:
                requeued.append(record.job_id)
            return
        self._unclaim(record, "lost")
        if not self.end_if_due(record):
            self.end(record, EndReason.ERROR, too_many_attempts(record.attempts))
            dead.append(record.job_id)


def _intake(model: str, body: bytes, asked_body: bytes | None) -> Intake:
    """What the queue needs to know of a body; a repeat is told by the one that was asked."""
    intake = read_body(body, model)
    if asked_body is None:
        return intake
    return replace(intake, fingerprint=read_body(asked_body, model).fingerprint)


def too_many_attempts(attempts: int) -> JobError:
    """The error of a job that was given up; RedisQueue's library words it alike."""
    return JobError("too_many_attempts", f"its worker was lost {attempts} times while running it")
