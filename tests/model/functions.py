"""The function library in Python: each function of ``queueing/lua`` as one step from a server to the next.

It says what a function decides, no more; ``test_against_code.py`` holds the real ones to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.model.states import (
    ABSENT,
    END,
    FINISHED,
    NOBODY,
    QUEUED,
    RUNNING,
    Bounds,
    Call,
    Given,
    Job,
    Rules,
    Server,
)

Outcome = tuple[object, ...]
Reply = tuple[Server, Outcome]

OK: Final = ("ok",)
LOST: Final = ("lost",)
CANCELLED: Final = ("cancelled",)
FRESH_OWNER: Final = 100
"""With a job's number added: a name that nothing has yet."""


def execute(server: Server, call: Call, bounds: Bounds, rules: Rules) -> Reply:
    """The server after a call, and what it answers."""
    return _FUNCTIONS[call.function](server, call, bounds, rules)


def passes(job: Job, token: int, *, is_fenced: bool) -> bool:
    """The fence: a write counts while its token is the job's. A job that does not run has none."""
    if not is_fenced:
        return job.state == RUNNING
    return token != NOBODY and job.token == token


def _with(server: Server, at: int, job: Job) -> Server:
    return server._replace(jobs=(*server.jobs[:at], job, *server.jobs[at + 1 :]))


def _ended(job: Job, reason: str, answer: tuple[int, ...]) -> Job:
    return job._replace(
        state=FINISHED,
        token=NOBODY,
        owner=NOBODY,
        asked=NOBODY,
        has_lease=False,
        stream=(*job.stream, END),
        reason=reason,
        answer=answer,
    )


def _ended_without_worker(job: Job, reason: str) -> Job:
    return _ended(job, reason, tuple(entry for entry in job.stream if entry != END))


def _is_due(job: Job) -> bool:
    return job.is_cancelled or job.is_late


def _ended_when_due(job: Job) -> Job:
    return _ended_without_worker(job, "cancelled" if job.is_cancelled else "deadline")


def _requeued(job: Job, rules: Rules) -> Job:
    if _is_due(job) and rules.a_requeue_looks_for_a_cancel:
        return _ended_when_due(job)
    return job._replace(
        state=QUEUED,
        token=NOBODY if rules.a_requeue_clears_the_token else job.token,
        owner=NOBODY,
        asked=NOBODY,
        has_lease=False,
        places=job.places + rules.a_requeue_enters_the_queue,
    )


def _appended(job: Job, tokens: tuple[int, ...], rules: Rules) -> Job:
    for token in tokens:
        if token > job.tokens or not rules.ids_must_grow:
            job = job._replace(stream=(*job.stream, token))
    return job


def _submit(server: Server, call: Call, bounds: Bounds, rules: Rules) -> Reply:
    if server.jobs[call.job].state != ABSENT and rules.submit_looks_for_the_key:
        return server, ("exists",)
    return _with(server, call.job, Job(QUEUED, places=1)), ("created",)


def _claim(server: Server, call: Call, bounds: Bounds, rules: Rules) -> Reply:
    """Jobs of this very claim first, if it was made before and its reply was lost; then waiting ones."""
    last = server.last_claims[call.worker]
    taken = []
    if last is not None and last[0] == call.token:
        taken = [
            at for at in last[1] if server.jobs[at].state == RUNNING and server.jobs[at].asked == call.token
        ]
    jobs = list(server.jobs)
    for at, job in enumerate(jobs):
        if len(taken) >= bounds.room or job.places == 0:
            continue
        found = job._replace(places=job.places - rules.a_claim_removes_the_entry)
        if found.state == QUEUED and not _is_due(found):
            taken.append(at)
            found = _opened(found, at, call, rules)
        jobs[at] = _ended_when_due(found) if found.state == QUEUED else found
    lasts = list(server.last_claims)
    if taken:
        lasts[call.worker] = (call.token, tuple(taken))
    given = tuple(
        Given(at, job.token, job.owner, job.attempts, job.tokens)
        for at, job in enumerate(jobs)
        if at in taken
    )
    return Server(tuple(jobs), tuple(lasts)), given


def _opened(job: Job, at: int, call: Call, rules: Rules) -> Job:
    """An owner's token is drawn by the server: a claim call may arrive twice, the second time much later."""
    owner = FRESH_OWNER + at
    counter = job.counter + (not rules.owners_are_named)
    token = owner if rules.each_owner_has_its_own_name else call.token
    if not rules.owners_are_named:
        token = -counter
    return job._replace(
        state=RUNNING, token=token, owner=owner, asked=call.token, has_lease=True, counter=counter
    )


def _emit(server: Server, call: Call, bounds: Bounds, rules: Rules) -> Reply:
    job = server.jobs[call.job]
    if not passes(job, call.token, is_fenced=rules.emit_is_fenced):
        return server, LOST
    if _has_forgotten(job, call, rules):
        return _disowned(server, call)
    return _with(server, call.job, _appended(job, call.tokens, rules)), OK


def _has_forgotten(job: Job, call: Call, rules: Rules) -> bool:
    """Whether the server has less than it once acknowledged: what follows would leave a gap."""
    return rules.a_gap_is_refused and len(job.stream) < call.before


def _disowned(server: Server, call: Call) -> Reply:
    """The next owner begins at what is there."""
    job = server.jobs[call.job]._replace(token=NOBODY, owner=NOBODY, asked=NOBODY, has_lease=False)
    return _with(server, call.job, job), LOST


def _finish(server: Server, call: Call, bounds: Bounds, rules: Rules) -> Reply:
    """``tokens`` is the whole answer; what the stream has of it is not written again."""
    job = server.jobs[call.job]
    if job.state == FINISHED and rules.finish_is_fenced:
        return server, OK if job.finisher == call.token else LOST
    if rules.finish_is_fenced and not passes(job, call.token, is_fenced=True):
        return server, LOST
    if _has_forgotten(job, call, rules):
        return _disowned(server, call)
    new = tuple(token for token in call.tokens if token > job.tokens)
    if rules.a_finish_brings_its_last_tokens:
        job = _appended(job, new, rules)
    ended = _ended(job, call.reason, call.tokens)._replace(finisher=call.token)
    if not rules.a_finish_clears_the_token:
        ended = ended._replace(token=call.token)
    return _with(server, call.job, ended), OK


def _renew(server: Server, call: Call, bounds: Bounds, rules: Rules) -> Reply:
    job = server.jobs[call.job]
    if not passes(job, call.token, is_fenced=rules.renew_is_fenced):
        return server, LOST
    return _with(server, call.job, job._replace(has_lease=True)), CANCELLED if job.is_cancelled else OK


def _release(server: Server, call: Call, bounds: Bounds, rules: Rules) -> Reply:
    job = server.jobs[call.job]
    if not passes(job, call.token, is_fenced=rules.release_is_fenced):
        return server, LOST
    return _with(server, call.job, _requeued(job, rules)), OK


def _cancel(server: Server, call: Call, bounds: Bounds, rules: Rules) -> Reply:
    job = server.jobs[call.job]
    if job.state == ABSENT:
        return server, ("unknown",)
    if job.state == FINISHED:
        return server, ("finished",)
    job = job._replace(is_cancelled=True)
    if job.state == QUEUED and rules.a_cancel_ends_a_waiting_job:
        ended = _ended_without_worker(job._replace(places=job.places - 1), "cancelled")
        return _with(server, call.job, ended), (QUEUED,)
    return _with(server, call.job, job), (job.state,)


def _reap(server: Server, call: Call, bounds: Bounds, rules: Rules) -> Reply:
    jobs, requeued, dead = list(server.jobs), [], []
    for at, job in enumerate(jobs):
        if job.state == RUNNING and not (job.has_lease and rules.a_reap_looks_at_the_lease):
            attempts = job.attempts + rules.a_reap_counts
            losses = min(job.losses + 1, bounds.max_attempts + 1)  # one too many says enough
            lost = job._replace(attempts=attempts, losses=losses)
            if attempts < bounds.max_attempts or _is_due(job) or not rules.a_reap_gives_up:
                jobs[at] = _requeued(lost, rules)
                requeued += [at] if jobs[at].state == QUEUED else []
            else:
                jobs[at] = _ended_without_worker(lost, "error")
                dead.append(at)
        elif job.state == QUEUED and job.is_late:
            jobs[at] = _ended_when_due(job._replace(places=job.places - 1))
    return server._replace(jobs=tuple(jobs)), (tuple(requeued), tuple(dead))


_FUNCTIONS: Final[dict[str, Callable[[Server, Call, Bounds, Rules], Reply]]] = {
    "submit": _submit,
    "claim": _claim,
    "emit": _emit,
    "finish": _finish,
    "renew": _renew,
    "release": _release,
    "cancel": _cancel,
    "reap": _reap,
}
