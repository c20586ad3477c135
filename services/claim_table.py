"""All jobs that this worker answers for, and the rules by which each of them ends exactly once here.

A claim leaves the table in one of three ways: its end was written, it was handed back, or it was lost to
another worker, whose word counts from then on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from headway.queueing.claims import Claim
from headway.queueing.events import EndReason, JobError
from headway.queueing.messages import Priority
from headway.services.answer import Answer
from headway.services.claimed_job import ClaimedJob, Phase
from headway.services.engine_thread import EngineThread
from headway.services.logs import get_logger, job_fields
from headway.services.metrics import WorkerMetrics
from headway.services.translate import (
    ModelSide,
    Prepared,
    Refusal,
    as_full,
    job_of,
    take_output,
    was_taken_out,
)

if TYPE_CHECKING:
    from headway.services.job_traces import JobTraces  # needs OpenTelemetry

_log = get_logger("worker")

UNEXPLAINED: Final = JobError(
    "engine_error", "a choice failed in the engine of a worker that was lost before it could say why"
)


class ClaimTable:
    """Owned by the I/O loop. ``to_write`` is set when the publisher has work, ``changed`` when room did."""

    def __init__(
        self,
        engine: EngineThread,
        model: ModelSide,
        metrics: WorkerMetrics,
        clock: Callable[[], float],
        to_write: asyncio.Event,
        *,
        max_stream_bytes: int,
        traces: JobTraces | None = None,
    ) -> None:
        self._engine = engine
        self._model = model
        self._metrics = metrics
        self._clock = clock
        self._max_stream_bytes = max_stream_bytes
        self._traces = traces
        self._jobs: dict[str, ClaimedJob] = {}
        self.to_write = to_write
        self.changed = asyncio.Event()
        self._is_closing = False

    def __iter__(self) -> Iterator[ClaimedJob]:
        return iter(tuple(self._jobs.values()))

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def sequences(self) -> int:
        """Engine slots in use or spoken for: open requests, and one for each job on its way in."""
        return sum(len(job.open_requests) or job.phase is not Phase.ENDED for job in self._jobs.values())

    @property
    def batch_sequences(self) -> int:
        """Open requests of the lowest class."""
        return sum(
            len(job.open_requests)
            for job in self._jobs.values()
            if job.prepared is not None and job.prepared.job.priority is Priority.BATCH
        )

    def holds(self, job: ClaimedJob) -> bool:
        """Whether this very claim is still ours."""
        return self._jobs.get(job.job_id) is job

    # -- in -------------------------------------------------------------------------------------------

    def accept(self, claim: Claim) -> ClaimedJob:
        """Take a claim in. An older claim of the same job is lost: the queue gave it out again."""
        older = self._jobs.get(claim.job_id)
        if older is not None:
            self.lose(older)
        job = ClaimedJob(claim, self._clock(), _log.bind(**job_fields(claim.job_id)))
        job.is_cancelled = claim.cancel_reason is not None
        self._jobs[claim.job_id] = job
        self._metrics.claimed(attempts=claim.attempts)
        if self._is_closing:
            self.hand_back(job)
        return job

    def close_door(self) -> None:
        """From now on, claims that still come in go straight back."""
        self._is_closing = True

    def prepared(self, job: ClaimedJob, outcome: Prepared | Refusal) -> None:
        """Continue with what translation made of a claim."""
        if not self.holds(job) or job.phase is not Phase.PREPARING:
            return  # lost, or handed back meanwhile
        posted = outcome.job
        if posted is not None:
            fields = job_fields(job.job_id, tenant=posted.tenant, traceparent=posted.traceparent)
            job.log = _log.bind(**fields)
        if isinstance(outcome, Refusal):
            self._refuse(job, outcome)
            return
        job.prepared, job.answer = outcome, outcome.answer
        if job.is_cancelled:
            self._end(job, EndReason.CANCELLED)
        elif job.answer.has_failed:
            job.error, job.dead_letter = UNEXPLAINED, UNEXPLAINED.code
            self._end(job, EndReason.ERROR)
        elif not outcome.specs:  # every choice had ended, only the last word was missing
            self._end(job, EndReason.STOP)
        else:
            self._start(job, outcome)

    def _start(self, job: ClaimedJob, prepared: Prepared) -> None:
        job.phase = Phase.RUNNING
        job.open_requests = {spec.request_id for spec in prepared.specs}
        job.log.info(
            "job_started",
            epoch=job.claim.epoch,
            attempts=job.claim.attempts,
            prompt_tokens=job.prompt_tokens,
            resumed_tokens=job.answer.resumed_tokens,
            waited_seconds=round(job.age_seconds_at_claim, 3),
        )
        self._metrics.started(prompt_tokens=job.prompt_tokens, resumed_tokens=job.answer.resumed_tokens)
        self._engine.add(job.job_id, prepared.specs)
        if prepared.job.priority is Priority.BATCH:
            self.changed.set()  # from now on better jobs have room in its place

    # -- on the way -----------------------------------------------------------------------------------

    def route(self) -> None:
        """Give the engine's new outputs to their jobs; what belongs to no claim of ours is dropped."""
        outputs = self._engine.take()
        now = self._clock() if outputs else 0.0
        for output in outputs:
            job = self._jobs.get(job_of(output.key.request_id)[0])
            is_ours = job is not None and output.key.request_id in job.open_requests
            if job is None or not is_ours or job.claim.epoch != output.key.epoch:
                self._metrics.suppressed(len(output.token_ids))
                continue
            if job.waits_since_seconds is None:
                job.waits_since_seconds = now
            ended = output.finish_reason is not None
            if ended:
                job.open_requests.discard(output.key.request_id)
                self.changed.set()
            # A request taken out to be handed back ended for nobody: its held-back text comes again from the
            # next owner. If it ended by itself just before, that is its end.
            if not (job.is_handed_back and was_taken_out(output)):
                told = as_full(output) if job.is_full else output
                job.error = take_output(job.answer, told, self._model.tokenizer) or job.error
                if job.error is not None and job.answer.has_failed:
                    job.dead_letter = job.error.code
            if ended and not job.open_requests:
                self._leave_engine(job)
            elif job.answer.stream_bytes >= self._max_stream_bytes:
                self._fill(job)

    def _fill(self, job: ClaimedJob) -> None:
        """End a job whose token stream is at its bound, as an answer that is as long as it may be."""
        if job.phase is Phase.RUNNING and not (job.is_full or job.is_handed_back or job.is_cancelled):
            job.is_full = True
            job.log.warning("stream_full", stream_bytes=job.answer.stream_bytes)
            self._engine.cancel(tuple(job.open_requests))

    def cancel(self, job_id: str) -> None:
        """End a job as its producer asked; a word about a job that is not ours is ignored."""
        job = self._jobs.get(job_id)
        if job is None or job.is_cancelled or job.phase in {Phase.ENDED, Phase.STOPPED}:
            return
        job.is_cancelled = True
        if job.phase is Phase.RUNNING:
            self._engine.cancel(tuple(job.open_requests))
        # PREPARING: ``prepared`` sees the flag.

    # -- out ------------------------------------------------------------------------------------------

    def hand_back(self, job: ClaimedJob) -> None:
        """Take a job out of the engine, to release it once its tokens are written."""
        is_ending = job.is_cancelled and job.phase is Phase.RUNNING
        if job.is_handed_back or is_ending or job.phase in {Phase.ENDED, Phase.STOPPED}:
            return
        job.is_handed_back = True
        if job.phase is Phase.RUNNING:
            self._engine.cancel(tuple(job.open_requests))
        else:
            self._stop(job)

    def lose(self, job: ClaimedJob) -> None:
        """Drop a job without a word: its new owner speaks for it."""
        if self.holds(job):
            if job.open_requests:
                self._engine.cancel(tuple(job.open_requests))
            self._metrics.lost()
            if self._traces is not None:
                self._traces.lost(job, self._metrics.journeys_of(job))
            job.log.warning("claim_lost", epoch=job.claim.epoch, phase=job.phase.value)
            self.close(job)

    def close(self, job: ClaimedJob) -> None:
        """Forget a job: its end, or its release, is written."""
        if self.holds(job):
            del self._jobs[job.job_id]
            self.changed.set()

    def _leave_engine(self, job: ClaimedJob) -> None:
        if job.answer.is_ended:
            self._end(job, EndReason.STOP)
        elif job.error is not None:
            # One choice failed before the others were taken out. The queue keeps no error of a single choice:
            # handed back, the job would end elsewhere as an error without a reason.
            self._end(job, EndReason.ERROR)
        else:
            self._stop(job)

    def _refuse(self, job: ClaimedJob, refusal: Refusal) -> None:
        # A refusal after a resume (this worker's context is shorter, say) keeps what others have committed.
        choices = max([refusal.choices, *(entry.choice + 1 for entry in job.claim.committed)])
        job.answer = Answer(choices, job.claim.committed)
        job.error, job.dead_letter = refusal.error, refusal.dead_letter
        # An ordinary refusal is the producer's to read; warnings reach the operator's terminal.
        log = job.log.info if refusal.dead_letter is None else job.log.warning
        log("job_refused", code=refusal.error.code, param=refusal.error.param)
        self._end(job, EndReason.ERROR)

    def _end(self, job: ClaimedJob, reason: EndReason) -> None:
        job.answer.cut(reason)
        job.phase = Phase.ENDED
        self.to_write.set()
        self.changed.set()

    def _stop(self, job: ClaimedJob) -> None:
        job.phase = Phase.STOPPED
        self.to_write.set()
        self.changed.set()
