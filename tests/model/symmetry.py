"""One representative for worlds that differ in names only: which worker is the first, what a token is called.

Also drops what can never be asked for again. Both are sound: no move and no promise tells such worlds apart.
Nearly all of the time goes here, so what is as it should be is not built anew.
"""

from __future__ import annotations

from tests.model.states import ABSENT, FINISHED, NOBODY, Call, Held, Job, Server, Worker, World


def representative(world: World, *, has_fences: bool) -> World:
    """The world that stands for this one and its likes. ``has_fences``: no rule of the protocol is broken."""
    return _renamed(_ordered(simplified(world, has_fences=has_fences)))


def simplified(world: World, *, has_fences: bool) -> World:
    """The same world without what can make no difference any more; names and places stay."""
    if has_fences:
        if world.late is not None and _is_spent(world.late, world):
            world = world._replace(late=None)
        if any(worker.held for worker in world.workers):
            world = _with_plain_zombies(world)
    return _without_the_forgotten(world)


def _is_spent(late: Call, world: World) -> bool:
    """Whether a late call can change nothing any more: a token that is nobody's never becomes somebody's."""
    servers = [server for server in (world.server, world.replica) if server is not None]
    jobs = [server.jobs[late.job] for server in servers]
    if late.function == "claim":
        return False
    if late.function == "submit":
        return all(job.state != ABSENT for job in jobs)
    if late.function == "cancel":
        return all(job.is_cancelled or job.state == FINISHED for job in jobs)
    return all(job.token != late.token for job in jobs)


def _with_plain_zombies(world: World) -> World:
    """How far a worker had come with a job that it lost no longer matters; that it goes on writing does."""
    alive = {job.token for job in world.server.jobs}
    if world.replica is not None:
        alive |= {job.token for job in world.replica.jobs}
    workers = tuple(
        worker
        if all(held.token in alive for held in worker.held)
        else worker._replace(
            held=tuple(
                held if held.token in alive else held._replace(written=0, made=0, ending=None)
                for held in worker.held
            )
        )
        for worker in world.workers
    )
    return world._replace(workers=workers)


def _without_the_forgotten(world: World) -> World:
    """Without notes that no call can match any more."""
    late = world.late
    known = {held.token for worker in world.workers for held in worker.held}
    asked = {worker.asked for worker in world.workers}
    if late is not None:
        known.add(late.token)
        asked.add(late.token)
    server = _pruned(world.server, known, asked)
    replica = None if world.replica is None else _pruned(world.replica, known, asked)
    if server is not world.server or replica is not world.replica:
        world = world._replace(server=server, replica=replica)
    workers = tuple(_remembering(worker, world) for worker in world.workers)
    if any(new is not old for new, old in zip(workers, world.workers, strict=True)):
        world = world._replace(workers=workers)
    return world


def _remembering(worker: Worker, world: World) -> Worker:
    """A worker without news of claims that it no longer holds, and without a claim that nobody heard of."""
    if worker.news and worker.news[0][1] not in {held.owner for held in worker.held}:
        worker = worker._replace(news=())
    if worker.asked and not _is_heard_of(worker.asked, world):
        worker = worker._replace(asked=NOBODY)
    return worker


def _is_heard_of(token: int, world: World) -> bool:
    if world.late is not None and world.late.token == token:
        return True
    return any(
        any(token in (job.asked, job.token) for job in server.jobs)
        or any(last is not None and last[0] == token for last in server.last_claims)
        for server in (world.server, world.replica)
        if server is not None
    )


def _pruned(server: Server, known: set[int], asked: set[int]) -> Server:
    for at, job in enumerate(server.jobs):
        finisher = job.finisher if job.finisher in known else NOBODY
        name = job.asked if job.asked in asked else NOBODY
        if finisher != job.finisher or name != job.asked:
            pruned = job._replace(finisher=finisher, asked=name)
            server = server._replace(jobs=(*server.jobs[:at], pruned, *server.jobs[at + 1 :]))
    for at, last in enumerate(server.last_claims):
        if last is not None and last[0] not in asked:
            lasts = (*server.last_claims[:at], None, *server.last_claims[at + 1 :])
            server = server._replace(last_claims=lasts)
    return server


# -- workers -------------------------------------------------------------------------------------------


def _ordered(world: World) -> World:
    looks = [_look(world, at) for at in range(len(world.workers))]
    order = sorted(range(len(looks)), key=looks.__getitem__)
    if order == list(range(len(order))):
        return world
    late = world.late
    return world._replace(
        server=_seated(world.server, order),
        replica=None if world.replica is None else _seated(world.replica, order),
        workers=tuple(world.workers[old] for old in order),
        late=None if late is None else late._replace(worker=order.index(late.worker)),
    )


def _look(world: World, at: int) -> tuple[object, ...]:
    """What a worker looks like without names, to sort by."""
    worker, jobs = world.workers[at], world.server.jobs
    held = [
        (each.job, jobs[each.job].token == each.token, each.written, each.made, each.ending or ())
        for each in worker.held
    ]
    is_late = world.late is not None and world.late.worker == at
    return (held, worker.asked > 0, len(worker.news), world.server.last_claims[at] is None, is_late)


def _seated(server: Server, order: list[int]) -> Server:
    return server._replace(last_claims=tuple(server.last_claims[old] for old in order))


# -- names ---------------------------------------------------------------------------------------------


def _renamed(world: World) -> World:
    """Names become small numbers in the order in which they appear; a counter (negative) stays."""
    names = names_in(world)
    return world if all(old == new for old, new in names.items()) else with_names(world, names)


def names_in(world: World) -> dict[int, int]:
    """Each name in a world, with a small number for it."""
    names: dict[int, int] = {NOBODY: NOBODY}
    for worker in world.workers:
        names.setdefault(worker.asked, len(names))
        for held in worker.held:
            names.setdefault(held.owner, len(names))
        for _, owner, _ in worker.news:
            names.setdefault(owner, len(names))
    if world.late is not None:
        names.setdefault(world.late.owner, len(names))
        if world.late.token > NOBODY:
            names.setdefault(world.late.token, len(names))
    servers = (world.server,) if world.replica is None else (world.server, world.replica)
    for server in servers:
        for job in server.jobs:
            names.setdefault(job.owner, len(names))
            names.setdefault(job.asked, len(names))
            if job.token > NOBODY:
                names.setdefault(job.token, len(names))
            if job.finisher > NOBODY:
                names.setdefault(job.finisher, len(names))
        for last in server.last_claims:
            if last is not None:
                names.setdefault(last[0], len(names))
    return names


def with_names(world: World, names: dict[int, int]) -> World:
    """The same world by other names."""
    return world._replace(
        workers=tuple(_worker(worker, names) for worker in world.workers),
        late=None if world.late is None else _call(world.late, names),
        server=_server(world.server, names),
        replica=None if world.replica is None else _server(world.replica, names),
    )


def _worker(worker: Worker, names: dict[int, int]) -> Worker:
    return Worker(
        tuple(
            Held(job, names.get(token, token), names[owner], written, made, ending)
            for job, token, owner, written, made, ending in worker.held
        ),
        names[worker.asked],
        tuple((job, names[owner], outcome) for job, owner, outcome in worker.news),
    )


def _call(call: Call, names: dict[int, int]) -> Call:
    return call._replace(token=names.get(call.token, call.token), owner=names[call.owner])


def _server(server: Server, names: dict[int, int]) -> Server:
    return Server(
        tuple(_job(job, names) if job.owner or job.token or job.finisher else job for job in server.jobs),
        tuple(None if last is None else (names[last[0]], last[1]) for last in server.last_claims),
    )


def _job(job: Job, names: dict[int, int]) -> Job:
    return job._replace(
        token=names.get(job.token, job.token),
        owner=names[job.owner],
        asked=names[job.asked],
        finisher=names.get(job.finisher, job.finisher),
    )
