"""Who is live, and where: the one place that moves a request from waiting to running to gone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from headway.engine.errors import InvariantError, RequestError
from headway.engine.line import Line, Rank
from headway.engine.memory import Memory
from headway.engine.policy import Policy
from headway.engine.request import Request
from headway.engine.timeline import Happening, RequestEvent, Timeline
from headway.engine.values import Emission, FinishReason, RequestKey, RequestSpec


class Roster:
    """A live request is in exactly one place: the policy's line, waiting on hold, or running with its blocks.

    A request that ends leaves all places at once. What is left of it is its farewell (the last output, until
    an ``apply`` emits it) and its key in ``released`` (until a plan that tells the runner was applied).
    """

    def __init__(self, memory: Memory, policy: Policy, timeline: Timeline) -> None:
        self._memory = memory
        self._policy = policy
        self._timeline = timeline
        self._live: dict[str, Request] = {}
        self._deadlines: Line[Request] = Line()
        self.running: dict[str, Request] = {}
        self.farewells: dict[str, Emission] = {}
        self.released: dict[RequestKey, int] = {}
        """What the runner has to forget, each with the number of its release."""
        self.releases = 0
        """How many releases there were: tells those that a plan carries from later ones of the same keys."""
        self.has_changed = False
        """Whether something happened since the flag was last cleared that can make a step worth while."""

    def __len__(self) -> int:
        """Live requests."""
        return len(self._live)

    @property
    def waiting(self) -> int:
        """Requests not started, held ones included."""
        return len(self._live) - len(self.running)

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline among live requests."""
        first = self._deadlines.first()
        return None if first is None else first[0][0]

    def named(self, request_id: str) -> Request | None:
        """The live request with this id, whatever its epoch."""
        return self._live.get(request_id)

    def find(self, key: RequestKey) -> Request | None:
        """The live request with this id and epoch."""
        request = self._live.get(key.request_id)
        return request if request is not None and request.key.epoch == key.epoch else None

    def refuse_duplicate(self, spec: RequestSpec) -> None:
        """Raise RequestError unless the spec is newer than a live (or just ended) request of its id."""
        live = self._live.get(spec.request_id)
        farewell = self.farewells.get(spec.request_id)
        key = live.key if live is not None else farewell.key if farewell is not None else None
        if key is not None and spec.epoch <= key.epoch:
            raise RequestError(
                f"request {spec.request_id} is live with epoch {key.epoch}, so {spec.epoch} is refused: "
                "cancel the first and take its last output, or send a newer epoch"
            )

    def enter(self, request: Request, now: float, step: int) -> None:
        """Let a request wait. A live older epoch of it leaves without a farewell: its owner lost it."""
        self.record(request, Happening.ARRIVED, request.spec.arrival_seconds, step)
        self.record(request, Happening.ADMITTED, now, step)
        older = self._live.get(request.key.request_id)
        if older is not None:
            self.remove(older)
        self.farewells.pop(request.key.request_id, None)
        self._live[request.key.request_id] = request
        if request.spec.deadline_seconds is not None:
            self._deadlines.add(_deadline_rank(request), request)
        self._policy.join(request)
        self._policy.enqueue(request)
        self.has_changed = True

    def start(self, request: Request, now: float, cost: float) -> None:
        """Move a request that got its block table from the line to the running ones."""
        self._policy.start(request, now, cost)
        self.running[request.key.request_id] = request

    def stop(self, request: Request) -> None:
        """Move a request that lost its block table from the running ones to its place in the line."""
        del self.running[request.key.request_id]
        if request.computed_tokens == 0 and request.is_announced:
            # The runner forgets it, and learns it afresh when it starts again.
            self._release(request)
            request.is_announced = False
        if not request.is_held:
            self._policy.enqueue(request)
        self.has_changed = True

    def move(self, request: Request, spec: RequestSpec) -> None:
        """Give a live request another class or deadline."""
        is_waiting = request.table is None and not request.is_held
        if is_waiting:
            self._policy.withdraw(request)
        if not request.is_held:
            self._policy.leave(request)
        if request.spec.deadline_seconds is not None:
            self._deadlines.discard(_deadline_rank(request))
        request.spec = spec
        if spec.deadline_seconds is not None:
            self._deadlines.add(_deadline_rank(request), request)
        if not request.is_held:
            self._policy.join(request)
        if is_waiting:
            self._policy.enqueue(request)
        self.has_changed = True

    def hold(self, request: Request) -> None:
        """Keep a request out of the steps; its blocks stay."""
        if not request.is_held:
            request.is_held = True
            if request.table is None:
                self._policy.withdraw(request)
            self._policy.leave(request)

    def unhold(self, request: Request) -> None:
        """Let a held request back to its old place."""
        if request.is_held:
            request.is_held = False
            self.has_changed = True
            self._policy.join(request)
            if request.table is None:
                self._policy.enqueue(request)

    def overdue(self, now: float) -> Iterator[Request]:
        """Requests whose deadline has come, earliest first; the caller ends or moves each in turn."""
        while (first := self._deadlines.first()) is not None and first[0][0] <= now:
            yield first[1]

    def record(self, request: Request, happening: Happening, now: float, step: int, detail: str = "") -> None:
        """Put an event of a request on the timeline."""
        spec = request.spec
        self._timeline.events.append(
            RequestEvent(request.key, happening, now, step, spec.tenant, spec.priority, detail)
        )

    def end(self, request: Request, reason: FinishReason, now: float, step: int) -> None:
        """Remove a request and leave its farewell."""
        self.record(request, Happening.FINISHED, now, step, reason.value)
        self.remove(request)
        self.farewells[request.key.request_id] = Emission(
            request.key, request.generated_tokens, None, finish_reason=reason
        )

    def remove(self, request: Request) -> None:
        """Take a request out of all books, once.

        Blocks that a step or a copy may still touch wait for its fence in the ledger.
        """
        del self._live[request.key.request_id]
        if request.spec.deadline_seconds is not None:
            self._deadlines.discard(_deadline_rank(request))
        self.has_changed = True
        if request.table is None:
            self._policy.withdraw(request)
        else:
            del self.running[request.key.request_id]
        if not request.is_held:
            self._policy.leave(request)
        if request.table is not None or request.is_announced:
            self._release(request)
        self._memory.release(request)

    def releases_after(self, number: int) -> tuple[RequestKey, ...]:
        """What was released after so many releases, for a plan to carry to the runner."""
        return tuple([key for key, release in self.released.items() if release > number])

    def told(self, keys: Iterable[RequestKey], releases: int) -> None:
        """The runner has forgotten these, but not what was released again since (``releases``: by then)."""
        for key in keys:
            if self.released.get(key, releases + 1) <= releases:
                del self.released[key]

    def check(self) -> None:
        """Recount from scratch; raises InvariantError on the first difference."""
        live = self._live.values()
        self._memory.ledger.check([r.table for r in live if r.table is not None])
        self._memory.host.check([r.parked for r in live if r.parked is not None])
        in_line = [request.key for request in self._policy]
        waiting = set(in_line)
        for request_id, request in self._live.items():
            places = (
                request.key in waiting,
                request.table is None and request.is_held,
                request.table is not None and self.running.get(request_id) is request,
            )
            if sum(places) != 1 or request_id in self.farewells:
                raise InvariantError(f"{request.key} is in {sum(places)} places")
            self._check_counts(request)
        live_keys = {request.key for request in self._live.values()}
        if (
            len(in_line) != len(waiting)
            or not waiting <= live_keys
            or not self.running.keys() <= self._live.keys()
        ):
            raise InvariantError("a request that is not live waits or runs")
        if len(self._deadlines) != sum(r.spec.deadline_seconds is not None for r in self._live.values()):
            raise InvariantError("a request that is not live has a deadline")

    def _release(self, request: Request) -> None:
        self.releases += 1
        self.released[request.key] = self.releases

    def _check_counts(self, request: Request) -> None:
        if not 0 <= request.computed_tokens < request.known_tokens:
            raise InvariantError(
                f"{request.key}: {request.computed_tokens} of {request.known_tokens} computed"
            )
        blocks = 0 if request.table is None else len(request.table.blocks)
        if request.parked is not None:
            blocks += len(request.parked.slots)
        if self._memory.ledger.blocks_for(request.computed_tokens) > blocks:
            raise InvariantError(f"{request.key}: {request.computed_tokens} tokens in {blocks} blocks")


def _deadline_rank(request: Request) -> Rank:
    deadline = request.spec.deadline_seconds
    if deadline is None:
        raise InvariantError(f"{request.key} has no deadline")
    return (deadline, request.serial)
