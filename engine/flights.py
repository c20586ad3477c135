"""Plans under way, and what is booked when their results come: time, service and fences."""

from __future__ import annotations

from array import array

from headway.engine.cost_model import CostModel, shape_of
from headway.engine.flight import Flight
from headway.engine.forecast import Forecast
from headway.engine.memory import Memory
from headway.engine.policy import Policy
from headway.engine.request import Request
from headway.engine.timeline import StepEvent, Timeline
from headway.engine.values import StepPlan, StepResult


class Flights:
    """Books each plan's result once. Plans that were thrown away are forgotten with the next but one."""

    def __init__(
        self, cost: CostModel, forecast: Forecast, policy: Policy, memory: Memory, timeline: Timeline
    ) -> None:
        self._cost = cost
        self._forecast = forecast
        self._policy = policy
        self._memory = memory
        self._timeline = timeline
        self._flights: dict[int, Flight] = {}
        self._dropped_step = 0
        self.executed_steps = 0
        self.last_seconds = 0.0
        self.last_predicted_seconds = 0.0

    @property
    def are_open(self) -> bool:
        """Whether a plan has not landed: the next one that does passes its fences too."""
        return bool(self._flights)

    def under_way(self, step: int) -> Flight | None:
        """The flight of a plan that has not landed."""
        return self._flights.get(step)

    def depart(
        self, plan: StepPlan, scheduled: list[tuple[Request, int]], starts_at: float, releases: int
    ) -> None:
        """The plan was made: who computes how many tokens in it."""
        requests = [request for request, _ in scheduled]
        starts = [request.computed_tokens for request in requests]
        tokens = array("i", [len(chunk.token_ids) for chunk in plan.chunks])
        shape = shape_of(zip(starts, tokens, strict=True))
        samples = bytes([chunk.samples for chunk in plan.chunks])
        drafts = bytes([chunk.draft_tokens for chunk in plan.chunks])
        if any(drafts) and max([computed for _, computed in scheduled]) == 1:
            shape = shape._replace(prefill_work=0.0, has_drafts=True)
        predicted = self._cost.predict(shape) if requests else 0.0
        while len(self._flights) > 1:
            del self._flights[min(self._flights)]
        self._flights[plan.step] = Flight(
            requests, starts, tokens, samples, drafts, shape, starts_at, predicted, releases
        )

    def drop(self, step: int) -> None:
        """The last plan will never be executed: its fences pass with those of the plan before it."""
        del self._flights[step]
        self._dropped_step = step

    def land(self, plan: StepPlan, result: StepResult, now: float) -> Flight | None:
        """Book a result, once; None: it was booked before, or that of a later plan was."""
        flight = self._flights.get(plan.step)
        if result.step != plan.step or flight is None:
            return None
        self._flights = {step: f for step, f in self._flights.items() if step > plan.step}
        flight.landed_at = max(now, flight.started_at + result.elapsed_seconds)
        flight.settle(result.sampled, is_overtaken=bool(self._flights))
        for later in self._flights.values():
            later.started_at = max(later.started_at, flight.landed_at)
        self._memory.land(plan, result)
        if self._dropped_step > plan.step:
            self._memory.ledger.complete(self._dropped_step, copied_step=0)
        self.last_seconds, self.last_predicted_seconds = result.elapsed_seconds, flight.predicted_seconds
        if plan.chunks:
            self.executed_steps += 1
            self._cost.observe(flight.shape, computing_seconds(result))
            self._forecast.observe(float(sum(flight.tokens)), result.elapsed_seconds)
            self._charge(flight)
            if self._memory.giving_way.detours:
                self._follow(flight, result)
            self._record(plan, flight, result)
        return flight

    def _charge(self, flight: Flight) -> None:
        """Also what was cancelled meanwhile: the time is spent. What a preemption lost is paid for."""
        charge, price = self._policy.charge, self._cost.price
        for request, start, tokens in zip(flight.requests, flight.starts, flight.tokens, strict=True):
            end = start + tokens
            paid = start if start > request.charged_tokens else request.charged_tokens  # noqa: FURB136 -- once per request and step: max() costs three times as much
            if paid < end:
                charge(request, price(paid, end - paid))
                request.charged_tokens = end

    def _follow(self, flight: Flight, result: StepResult) -> None:
        """What computing again takes: what it adds to a step, by the cost model, as far as that was right."""
        detours, seconds = self._memory.giving_way.detours, computing_seconds(result)
        for request, start, tokens in zip(flight.requests, flight.starts, flight.tokens, strict=True):
            if request in detours:
                added = self._cost.marginal_seconds(start, tokens) * seconds
                share = added / flight.predicted_seconds if flight.predicted_seconds else seconds
                detours.compute(request, start, start + tokens, share)

    def _record(self, plan: StepPlan, flight: Flight, result: StepResult) -> None:
        self._timeline.steps.append(
            StepEvent(
                step=plan.step,
                started_at=flight.started_at,
                predicted_seconds=flight.predicted_seconds,
                real_seconds=result.elapsed_seconds,
                kv_blocks_used=self._memory.ledger.used_blocks,
                waiting=self._policy.waiting,
                keys=tuple([request.key for request in flight.requests]),
                tokens=flight.tokens,
                samples=flight.samples,
            )
        )


def computing_seconds(result: StepResult) -> float:
    """A step's time without the copies that it had to wait for."""
    if not result.copy_times:
        return result.elapsed_seconds
    return result.elapsed_seconds - sum([time.seconds for time in result.copy_times if not time.is_beside])
