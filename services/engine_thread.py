"""The engine in its own thread: commands in, outputs out, never a wait for a client or for the queue.

    I/O loop ── add, cancel, acknowledge ──► inbox ──► [drain, step, push]* ──► outbox ── take ──► I/O loop

Both boxes are bounded by what they carry: the inbox by the jobs claimed, the outbox by flow control (a job
whose tokens are not acknowledged is held, see ``flow_control.py``). The thread sleeps when nothing can run.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headway.engine.engine import Engine
from headway.engine.errors import DeadlineError, RequestError
from headway.engine.values import EngineLoad, FinishReason, Output, RequestKey, RequestSpec
from headway.services.flow_control import FlowControl
from headway.services.standing_back import StandingBack

QUIET_SECONDS: Final = 1.0
"""Idle for this long, the engine recounts its books: late enough to be in nobody's way."""


@dataclass(frozen=True, slots=True)
class _Add:
    job: str
    specs: tuple[RequestSpec, ...]


@dataclass(frozen=True, slots=True)
class _Cancel:
    requests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Acknowledge:
    tokens: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class _Weigh:
    weights: tuple[tuple[str, float], ...]


_Command = _Add | _Cancel | _Acknowledge | _Weigh


class EngineThread:
    """Steps the engine while it has work. All methods may be called from the I/O loop at any time.

    ``notify`` is called from the engine's thread when ``take`` has something new, at most once per ``take``.
    ``observe_step(seconds)`` is called from it after each step. An exception in the engine ends the thread
    and is kept in ``failure``.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        notify: Callable[[], None],
        observe_step: Callable[[float], None],
        clock: Callable[[], float],
        unacknowledged_tokens: int,
    ) -> None:
        self._engine = engine
        self._notify = notify
        self._observe_step = observe_step
        self._clock = clock
        self._flow = FlowControl(unacknowledged_tokens)
        self._back = StandingBack(engine.limits)
        self._inbox: deque[_Command] = deque()
        self._outbox: deque[tuple[Output, ...]] = deque()
        self._work = threading.Condition()
        self._is_stopping = False
        self._is_notified = False
        self._is_recounted = True
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="headway-engine", daemon=True)
        self.load: EngineLoad = engine.load
        self.failure: BaseException | None = None
        self._asleep: tuple[float, float | None] = (0.0, None)
        """Seconds of all sleeps that ended, and when the one under way began: one value, so that a reader in
        another thread never sees half of a change."""

    def start(self) -> None:
        """Begin to step."""
        self._thread.start()

    def stop(self, timeout_seconds: float) -> bool:
        """End the thread after the step that runs; whether it ended in time."""
        with self._work:
            self._is_stopping = True
            self._work.notify()
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def add(self, job: str, specs: Sequence[RequestSpec]) -> None:
        """Run a job's requests; one that is refused comes back as an output that ended with ``error``."""
        self._post(_Add(job, tuple(specs)))

    def cancel(self, requests: Sequence[str]) -> None:
        """End requests between two steps; each that still ran comes back as an output that ended."""
        if requests:
            self._post(_Cancel(tuple(requests)))

    def acknowledge(self, tokens: Sequence[tuple[str, int]]) -> None:
        """Tell how many more tokens of each job are in the queue."""
        if tokens:  # a word about nothing would wake an idle engine
            self._post(_Acknowledge(tuple(tokens)))

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Give tenants these weights from the next step on."""
        if weights:
            self._post(_Weigh(tuple(weights.items())))

    def take(self) -> tuple[Output, ...]:
        """All outputs since the last call, in order."""
        self._is_notified = False  # before the drain: what is pushed from here on notifies again
        outputs: list[Output] = []
        while self._outbox:
            outputs.extend(self._outbox.popleft())
        return tuple(outputs)

    def step_age_seconds(self) -> float:
        """How long the step that runs now has been running; 0 when idle."""
        since = self._busy_since
        return 0.0 if since is None else max(0.0, self._clock() - since)

    def idle_seconds(self) -> float:
        """How long the thread has slept since the start, the sleep under way included."""
        slept, since = self._asleep
        return slept if since is None else slept + max(0.0, self._clock() - since)

    def _post(self, command: _Command) -> None:
        with self._work:
            self._inbox.append(command)
            self._work.notify()

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._iterate()
        except BaseException as error:  # whatever it is, the I/O loop must learn of it
            self.failure = error
            self._notify()
        finally:
            self._engine.close()

    def _wait_for_work(self) -> bool:
        """Sleep until a command comes, a request can run, or a time has come; False: stop."""
        with self._work:
            while not (self._inbox or self._is_stopping or self._has_runnable):
                seconds = self._longest_sleep()
                if not self._sleep(seconds) and seconds is not None:
                    break
            return not self._is_stopping

    @property
    def _has_runnable(self) -> bool:
        # Who is held for others goes on where these cannot.
        return self._engine.has_runnable or self._back.is_holding

    def _sleep(self, seconds: float | None) -> bool:
        """Until a command comes; False: the time is over."""
        slept, started = self._asleep[0], self._clock()
        self._asleep = (slept, started)
        is_called = self._work.wait(seconds)
        self._asleep = (slept + self._clock() - started, None)
        return is_called

    def _longest_sleep(self) -> float | None:
        """Seconds to the earliest deadline, or to the recount after the last work; None: for ever."""
        deadline = self._engine.next_deadline
        if deadline is not None:
            return max(0.0, deadline - self._clock())
        return None if self._is_recounted or self._engine.has_work else QUIET_SECONDS

    def _iterate(self) -> None:
        self._busy_since = self._clock()
        outputs: list[Output] = []
        was_told = len(self._inbox) > 0
        while self._inbox:
            outputs += self._obey(self._inbox.popleft())
        if self._engine.has_work:
            outputs += self._step()
            self._is_recounted = False
        elif not (was_told or self._is_recounted):
            self._engine.check_books()
            self._is_recounted = True
        self.load = self._engine.load
        self._busy_since = None
        if outputs:
            self._push(tuple(outputs))

    def _step(self) -> tuple[Output, ...]:
        steps_before, started = self._engine.load.steps, self._clock()
        self._make_way(started)
        outputs = self._engine.step(started)
        if self._engine.load.steps > steps_before:
            self._observe_step(self._clock() - started)
        elif self._back.is_holding:
            self._back.stands(started)
        ended = {output.key.request_id for output in outputs if output.finish_reason is not None}
        for output in outputs:
            if output.token_ids:
                self._back.answered(output.key.request_id)
            for held in self._flow.emitted(output.key.request_id, len(output.token_ids)):
                if held not in ended:
                    self._engine.hold(held)
        for request in ended:
            self._close(request)
        return outputs

    def _make_way(self, now: float) -> None:
        """Let batch requests stand back for others, or go on."""
        change = self._back.begin(now)
        for request in change.held:
            self._engine.hold(request)
        for request in change.freed:
            if not self._flow.holds(request):
                self._engine.unhold(request)
        if change.limits is not None:
            self._engine.set_limits(change.limits)

    def _close(self, request: str) -> None:
        self._flow.close(request)
        self._back.closed(request)

    def _obey(self, command: _Command) -> list[Output]:
        match command:
            case _Add(job, specs):
                return self._add(job, specs)
            case _Cancel(requests):
                for request in requests:
                    self._close(request)
                    self._engine.cancel(request, FinishReason.CANCELLED)
            case _Weigh(weights):
                for tenant, weight in weights:
                    self._engine.set_weight(tenant, weight)
            case _Acknowledge(tokens):
                for job, count in tokens:
                    for request in self._flow.acknowledged(job, count):
                        if not self._back.holds(request):
                            self._engine.unhold(request)
        return []

    def _add(self, job: str, specs: tuple[RequestSpec, ...]) -> list[Output]:
        self._flow.open(job, [spec.request_id for spec in specs])
        refused: list[Output] = []
        for spec in specs:
            try:
                self._engine.add(spec, now := self._clock())
                self._back.opened(spec, now)
            except DeadlineError as error:
                # Fewer choices than were asked for are no answer in time: all of them end.
                place = specs.index(spec)
                for earlier in specs[:place]:
                    self._engine.cancel(earlier.request_id, FinishReason.DEADLINE)
                return refused + [self._refused(s, FinishReason.DEADLINE, error) for s in specs[place:]]
            except RequestError as error:  # checked before, yet the engine has the last word
                refused.append(self._refused(spec, FinishReason.ERROR, error))
        return refused

    def _refused(self, spec: RequestSpec, reason: FinishReason, error: RequestError) -> Output:
        self._close(spec.request_id)
        key = RequestKey(spec.request_id, spec.epoch)
        return Output(key, "", (), finish_reason=reason, error_message=str(error))

    def _push(self, outputs: tuple[Output, ...]) -> None:
        self._outbox.append(outputs)
        if not self._is_notified:
            self._is_notified = True
            self._notify()
