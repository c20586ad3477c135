"""What the queue promises, as questions to a world and to a step: None, or the promise that broke."""

from __future__ import annotations

from tests.model.functions import passes
from tests.model.states import ABSENT, END, FINISHED, QUEUED, RUNNING, Action, Bounds, Job, Rules, World

FENCED = ("emit", "finish", "renew", "release")


def broken_in(world: World, bounds: Bounds, rules: Rules) -> str | None:
    """The promise that a world breaks."""
    for at, job in enumerate(world.server.jobs):
        broken = (
            _of_stream(job)
            or _of_record(job, bounds)
            or (_of_acceptance(job) if world.accepted[at] else None)
            or _of_reader(world.seen[at])
            or (_of_owners(world, at, rules) if job.state == RUNNING else None)
        )
        if broken:
            return broken
    return None


def _is_answer(entries: tuple[int, ...]) -> bool:
    return entries == tuple(range(1, len(entries) + 1))


def _of_stream(job: Job) -> str | None:
    ends = job.stream.count(END)
    if ends != (job.state == FINISHED):
        return "a job has exactly one terminal entry, from its end on"
    if ends and job.stream[-1] != END:
        return "nothing follows the terminal entry"
    if not _is_answer(job.stream[:-1] if ends else job.stream):
        return "tokens come in order, each once, none missing"
    return None


def _of_record(job: Job, bounds: Bounds) -> str | None:
    if job.places != (job.state == QUEUED):
        return "a job is in the waiting list exactly while it waits: else it is lost, or runs twice"
    if job.state == QUEUED and job.is_cancelled:
        return "a cancelled job does not wait again"
    if job.losses > bounds.max_attempts or job.attempts != job.losses:
        return "a job is taken back a bounded number of times, and each is counted"
    if job.state == FINISHED and job.answer != job.stream[:-1]:
        return "the answer that is kept is what was streamed"
    return None


def _of_acceptance(job: Job) -> str | None:
    return "an accepted job is never lost" if job.state == ABSENT else None


def _of_reader(seen: tuple[int, ...]) -> str | None:
    ended = seen.count(END)
    if ended > 1 or (ended and seen[-1] != END) or not _is_answer(seen[:-1] if ended else seen):
        return "a reader sees each token once, in order, and one end"
    return None


def _of_owners(world: World, at: int, rules: Rules) -> str | None:
    owners = {
        (number, held.owner)
        for number, worker in enumerate(world.workers)
        for held in worker.held
        if held.job == at and passes(world.server.jobs[at], held.token, is_fenced=rules.emit_is_fenced)
    }
    return "two workers never own a job" if len(owners) > 1 else None


def broken_by(before: World, action: Action, after: World) -> str | None:
    """The promise that a step breaks."""
    if action.name == "failover":
        return None  # a server that forgot may change its mind; what the readers saw still counts
    if before.server is after.server:
        return None
    for old, new in zip(before.server.jobs, after.server.jobs, strict=True):
        if old is new:
            continue
        if old.state == FINISHED and old._replace(finisher=0) != new._replace(finisher=0):
            return "a job that ended does not change"
        if new.losses > old.losses and old.has_lease:
            return "a job is not taken back before its lease has passed"
        if new.stream[: len(old.stream)] != old.stream:
            return "what was published is not taken back"
    return _of_zombies(before, action, after)


def _of_zombies(before: World, action: Action, after: World) -> str | None:
    call = action.call
    if call is None or call.function not in FENCED or after.server is before.server:
        return None
    old, new = before.server.jobs[call.job], after.server.jobs[call.job]
    if old.owner != call.owner and old != new:
        return "a worker that lost a job changes nothing of it"
    return None
