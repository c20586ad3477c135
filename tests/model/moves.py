"""Everything that can happen next in a world: calls and what becomes of them, crashes, time, the network.

A call has three fates. ``ok``: done, and its caller knows. ``reply lost``: done, and its caller gives up not
knowing. ``late``: its caller gives up, and the request is done at any later moment, or never. (A request that
is lost at once leaves the world as it was.) A stopped process needs no move: its turn just does not come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeVar

from tests.model.functions import LOST, Outcome, execute
from tests.model.states import (
    ABSENT,
    END,
    FINISHED,
    NOBODY,
    QUEUED,
    RUNNING,
    Action,
    Bounds,
    Call,
    Given,
    Held,
    Job,
    Rules,
    Server,
    Worker,
    World,
)

T = TypeVar("T")
Step = tuple[Action, World]
FRESH: Final = 99
"""A name for a claim call that nothing has yet; ``symmetry.py`` gives a world's names small numbers."""


def first_world(bounds: Bounds) -> World:
    """Nothing has happened yet."""
    return World(
        server=Server((Job(),) * bounds.jobs, (None,) * bounds.workers),
        workers=(Worker(),) * bounds.workers,
        accepted=(False,) * bounds.jobs,
        cancel_told=(False,) * bounds.jobs,
        seen=((),) * bounds.jobs,
    )


def moves(world: World, bounds: Bounds, rules: Rules) -> Iterator[Step]:
    """Each possible step."""
    turn = _Turn(world, bounds, rules)
    for at, job in enumerate(world.server.jobs):
        yield from turn.producer(at, job)
        yield from turn.time(at, job)
    for at, worker in enumerate(world.workers):
        yield from turn.claim(at, worker)
        yield from turn.news(at, worker)
        for held in worker.held:
            yield from turn.write(at, worker, held)
        yield from turn.crash(at, worker)
    yield from turn.reaper()
    yield from turn.network()
    yield from turn.failover()


class _Turn:
    """The steps from one world."""

    def __init__(self, world: World, bounds: Bounds, rules: Rules) -> None:
        self._world = world
        self._bounds = bounds
        self._rules = rules

    # -- producer and reader --------------------------------------------------------------------------

    def producer(self, at: int, job: Job) -> Iterator[Step]:
        world = self._world
        if not world.accepted[at]:
            told = world._replace(accepted=_set(world.accepted, at, True))
            yield from self._call(Call("submit", job=at), world, lambda _: told)
        elif self._bounds.has_cancel and not world.cancel_told[at]:
            heard = world._replace(cancel_told=_set(world.cancel_told, at, True))
            yield from self._call(Call("cancel", job=at), world, lambda _: heard)
        if self._bounds.has_reader and world.accepted[at] and END not in world.seen[at]:
            new = self._unread(job, world.seen[at])
            if new:
                read = world._replace(seen=_set(world.seen, at, world.seen[at] + new))
                yield Action("read", outcome=(at, new)), read

    def _unread(self, job: Job, seen: tuple[int, ...]) -> tuple[int, ...]:
        """The entries behind a reader's cursor. The end stands behind the last token, perhaps before that."""
        cursor = max(seen, default=0)
        first = cursor + self._rules.a_reader_reads_behind_its_cursor
        sees_end = job.tokens >= cursor or self._rules.a_reader_ahead_is_told_the_end
        return tuple(entry for entry in job.stream if (sees_end if entry == END else entry >= max(1, first)))

    # -- worker ---------------------------------------------------------------------------------------

    def claim(self, at: int, worker: Worker) -> Iterator[Step]:
        name = worker.asked or FRESH
        call = Call("claim", worker=at, token=name)
        unknowing = self._put(at, worker._replace(asked=name))
        if not self._rules.a_claim_is_one_call:
            yield from self._popped_and_crashed(at)

        def accepted(outcome: Outcome) -> World:
            held = {each.job: each for each in worker.held}
            for given in outcome:
                assert isinstance(given, Given)
                skipped = not self._rules.an_owner_continues_after_the_last_token
                begun = min(self._bounds.tokens, given.tokens + skipped)
                held[given.job] = Held(given.job, given.token, given.owner, begun, begun)
            table = tuple(held[job] for job in sorted(held))
            return self._put(at, worker._replace(held=table, asked=NOBODY))

        yield from self._call(call, unknowing, accepted)

    def _popped_and_crashed(self, at: int) -> Iterator[Step]:
        """A wrong design: the entry is taken first, the claim noted after it; the worker dies in between."""
        for number, job in enumerate(self._world.server.jobs):
            if job.places:
                popped = _set(self._world.server.jobs, number, job._replace(places=job.places - 1))
                server = self._world.server._replace(jobs=popped)
                yield Action("crash inside claim"), self._put(at, Worker())._replace(server=server)

    def write(self, at: int, worker: Worker, held: Held) -> Iterator[Step]:
        """What may follow for a job in a table: tokens, a renewal, its end, its return."""
        gone = self._put(at, worker._replace(held=tuple(each for each in worker.held if each is not held)))
        yield from self._renew(at, worker, held, gone)
        if held.ending is None:
            yield from self._emit(at, worker, held, gone)
        for ending in (held.ending,) if held.ending is not None else self._endings(held):
            reason, count = ending
            decided = self._hold(at, worker, held, held._replace(ending=ending))
            call = self._fenced("release" if reason == "release" else "finish", at, held)
            if reason != "release":
                call = call._replace(reason=reason, tokens=tuple(range(1, count + 1)))
            yield from self._call(call, decided, lambda _: gone)

    def _endings(self, held: Held) -> Iterator[tuple[str, int]]:
        job, longest = self._world.server.jobs[held.job], self._bounds.tokens
        yield "stop", longest
        for is_so, reason in ((job.is_cancelled, "cancelled"), (job.is_late, "deadline")):
            if is_so:
                yield reason, held.made
                if held.made < longest:
                    yield reason, held.made + 1
        if self._bounds.has_drain:
            yield "release", 0

    def _emit(self, at: int, worker: Worker, held: Held, gone: World) -> Iterator[Step]:
        for upto in range(held.written + 1, min(held.made + 1, self._bounds.tokens) + 1):
            tokens = tuple(range(held.written + 1, upto + 1))
            made = max(held.made, upto)
            known = self._hold(at, worker, held, held._replace(written=upto, made=made))
            sent = self._hold(at, worker, held, held._replace(made=made))
            call = self._fenced("emit", at, held)._replace(tokens=tokens)
            yield from self._call(call, sent, partial(_unless_lost, gone, known))

    def _renew(self, at: int, worker: Worker, held: Held, gone: World) -> Iterator[Step]:
        """A renewal runs beside a claim and a write, so its reply may come after them; one at a time."""
        if worker.news:
            return

        def heard(outcome: Outcome) -> World:
            if outcome != LOST:
                return self._world  # a cancel is acted upon, or not yet, in any case
            if not self._bounds.has_slow_news:
                return gone
            news = (held.job, held.owner, "lost")
            return self._put(at, worker._replace(news=(news,)))

        yield from self._call(self._fenced("renew", at, held), self._world, heard)

    def news(self, at: int, worker: Worker) -> Iterator[Step]:
        """The reply to a renewal arrives: what is lost is what it asked for, not a newer claim."""
        for news in worker.news:
            job, owner, _ = news
            held = tuple(each for each in worker.held if (each.job, each.owner) != (job, owner))
            left = tuple(each for each in worker.news if each != news)
            yield Action("news", outcome=(at, job)), self._put(at, worker._replace(held=held, news=left))

    def crash(self, at: int, worker: Worker) -> Iterator[Step]:
        if worker != Worker():
            yield Action("crash", outcome=(at,)), self._put(at, Worker())

    # -- the rest -------------------------------------------------------------------------------------

    def time(self, at: int, job: Job) -> Iterator[Step]:
        if job.state == RUNNING and job.has_lease:
            yield Action("lease passes", outcome=(at,)), self._serve(at, job._replace(has_lease=False))
        if self._bounds.has_deadline and job.state in (QUEUED, RUNNING) and not job.is_late:
            yield Action("deadline passes", outcome=(at,)), self._serve(at, job._replace(is_late=True))
        for worker, last in enumerate(self._world.server.last_claims):
            if at == 0 and last is not None:
                lasts = _set(self._world.server.last_claims, worker, None)
                server = self._world.server._replace(last_claims=lasts)
                yield Action("claim is forgotten", outcome=(worker,)), self._world._replace(server=server)

    def reaper(self) -> Iterator[Step]:
        yield from self._call(Call("reap"), self._world, lambda _: self._world, has_fates=False)

    def network(self) -> Iterator[Step]:
        late = self._world.late
        if late is not None:
            free = self._world._replace(late=None)
            server, outcome = execute(free.server, late, self._bounds, self._rules)
            yield Action("late call", late, "late", outcome), free._replace(server=server)
            yield Action("late call is lost"), free

    def failover(self) -> Iterator[Step]:
        world = self._world
        if world.failovers < self._bounds.failovers:
            if world.replica is None:
                yield Action("replica lags"), world._replace(replica=world.server)
            # What nobody else has yet is not promised: a producer that needs more asks for WAIT.
            elif all(
                job.state != ABSENT
                for job, accepted in zip(world.replica.jobs, world.accepted, strict=True)
                if accepted
            ):
                promoted = world._replace(server=world.replica, replica=None, failovers=world.failovers + 1)
                yield Action("failover"), promoted

    # -- helpers --------------------------------------------------------------------------------------

    def _call(
        self, call: Call, unknowing: World, knowing: Callable[[Outcome], World], *, has_fates: bool = True
    ) -> Iterator[Step]:
        """One call with each of its fates. Both worlds: as their caller leaves them."""
        server, outcome = execute(self._world.server, call, self._bounds, self._rules)
        yield Action("call", call, "ok", outcome), knowing(outcome)._replace(server=server)
        if not has_fates:
            return
        if self._bounds.has_late_calls and self._world.late is None:
            # Done at once afterwards, this is a reply that was lost.
            yield Action("call", call, "late"), unknowing._replace(late=call)
        else:
            yield Action("call", call, "reply lost", outcome), unknowing._replace(server=server)

    def _fenced(self, function: str, at: int, held: Held) -> Call:
        return Call(
            function, worker=at, job=held.job, token=held.token, owner=held.owner, before=held.written
        )

    def _put(self, at: int, worker: Worker) -> World:
        return self._world._replace(workers=_set(self._world.workers, at, worker))

    def _hold(self, at: int, worker: Worker, old: Held, new: Held) -> World:
        return self._put(at, worker._replace(held=tuple(new if h is old else h for h in worker.held)))

    def _serve(self, at: int, job: Job) -> World:
        jobs = _set(self._world.server.jobs, at, job)
        return self._world._replace(server=self._world.server._replace(jobs=jobs))


def _unless_lost(gone: World, known: World, outcome: Outcome) -> World:
    return gone if outcome == LOST else known


def _set(values: tuple[T, ...], at: int, value: T) -> tuple[T, ...]:
    return (*values[:at], value, *values[at + 1 :])


def is_misfortune(action: Action) -> bool:
    """Whether a step is none that must come: the way to a good end may not need it."""
    return (
        (action.fate in ("reply lost", "late") and action.name == "call")
        or action.name in ("crash", "failover", "replica lags", "claim is forgotten", "deadline passes")
        or (action.call is not None and action.call.function in ("release", "cancel"))
    )


def is_at_rest(world: World, bounds: Bounds) -> bool:
    """Whether all that was accepted has ended, and its reader knows."""
    for job, accepted, seen in zip(world.server.jobs, world.accepted, world.seen, strict=True):
        if job.state != FINISHED if accepted else job.state not in (FINISHED, ABSENT):
            return False
        if accepted and bounds.has_reader and END not in seen:
            return False
    return True
