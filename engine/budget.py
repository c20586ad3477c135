"""One step's budget: predicted time, from the token that is due first, under the caps in tokens.

    order in a step      decodes that are due soon · prefills in fair order · other decodes · spare prefill
    time                 smallest slack of the decodes in it, within [min_step_seconds, max_step_seconds]

(FairBatching, arXiv 2510.14392.) Every delay is bounded: a decode is left out at most ``max_skipped_steps``
times in a row, and prefills get their floor chunk in every step, however little time there is.
"""

from __future__ import annotations

from headway.engine.cost_model import CostModel
from headway.engine.limits import StepLimits
from headway.engine.policy import Policy
from headway.engine.request import Request
from headway.engine.shares import floor_chunk, share_budget


class StepBudget:
    """What is left of one step. While the cost model is not trusted only tokens count: as many as lately took
    as long as a step may.
    """

    def __init__(self, limits: StepLimits, cost: CostModel, now: float) -> None:
        self._limits = limits
        self._cost = cost
        self._now = now
        self._is_timed = cost.is_trusted
        self.tokens = limits.max_step_tokens if self._is_timed else cost.likely_tokens(limits)
        self.seconds = limits.max_step_seconds - cost.step_seconds() if self._is_timed else float("inf")

    def split(self, decodes: list[Request]) -> tuple[list[Request], list[Request]]:
        """Decodes that this step takes, and those whose token is not due before the longest step ends."""
        if not self._is_timed:
            return decodes, []
        patient_from, most_skipped = self._now + self._limits.max_step_seconds, self._limits.max_skipped_steps
        urgent: list[Request] = []
        patient: list[Request] = []
        for request in decodes:
            due = request.due_seconds
            if due is not None and due >= patient_from and request.skipped_steps < most_skipped:
                patient.append(request)
            else:
                urgent.append(request)
        return urgent, patient

    def take_decodes(self, decodes: list[Request]) -> None:
        """Spend on decodes that the step must hold, and end the step before the first of them is late.

        Those without a due time must not wait for prefills longer than ``max_gap_seconds``, or than twice the
        step that they take by themselves.
        """
        self.tokens -= len(decodes)
        if not self._is_timed or not decodes:
            return
        seconds = self._cost.decode_seconds(
            len(decodes), sum([request.computed_tokens for request in decodes])
        )
        dues = [request.due_seconds for request in decodes if request.due_seconds is not None]
        slack = max(min(dues) - self._now, self._limits.min_step_seconds) if dues else float("inf")
        if len(dues) < len(decodes):
            slack = min(slack, max(self._limits.max_gap_seconds, 2 * (self._cost.step_seconds() + seconds)))
        self.seconds -= max(0.0, self._limits.max_step_seconds - slack) + seconds

    def prefill_tokens(self) -> int:
        """Most tokens that prefills may take: what fits into the time at no context, but always a floor."""
        if not self._is_timed or self.tokens <= 0:
            return self.tokens
        floor = min(self.tokens, self._limits.min_chunk_tokens)
        rate = self._cost.marginal_seconds(0, 64) / 64
        seconds = max(0.0, self.seconds)
        # Where tokens cost no time by the fit, fewer of them would not end the step any sooner.
        if rate * self.tokens <= seconds:
            return self.tokens
        return max(floor, int(seconds / rate))

    def grant_prefills(self, policy: Policy, prefills: list[Request]) -> list[tuple[Request, int]]:
        """How many tokens of each prefill this step computes, in the policy's order; none: left out.

        One chunk is longer than max(floor, budget / prefills) only where the others have no use for the rest.
        """
        if not prefills:
            return []
        tokens = self.prefill_tokens()
        ordered = policy.sort(prefills) if len(prefills) > 1 else prefills
        pending = [request.pending_tokens for request in ordered]
        least = min(tokens, self._limits.min_chunk_tokens)
        while True:
            floor = floor_chunk(tokens, self._limits.min_chunk_tokens)
            grants = share_budget(pending, tokens, floor)
            seconds, left = self._seconds(ordered, grants), max(0.0, self.seconds)
            if seconds <= left or tokens <= least:
                break
            # The time is convex in the tokens, so cutting in proportion is enough in one or two rounds.
            tokens = max(least, min(tokens - 1, int(min(tokens, sum(grants)) * left / seconds)))
        self.tokens -= sum(grants)
        self.seconds -= seconds
        return [(request, tokens) for request, tokens in zip(ordered, grants, strict=True) if tokens]

    def take_patient(self, patient: list[Request], is_crowded: bool) -> list[Request]:
        """The patient decodes that still fit, first the one left out longest; all unless ``is_crowded``."""
        if not patient:
            return patient
        whole = self._cost.decode_seconds(len(patient), sum([r.computed_tokens for r in patient]))
        if len(patient) <= self.tokens and (whole <= self.seconds or not is_crowded):
            return patient
        taken: list[Request] = []
        for request in sorted(patient, key=lambda r: (-r.skipped_steps, r.due_seconds or 0.0, r.serial)):
            seconds = self._cost.marginal_seconds(request.computed_tokens, 1)
            if self.tokens < 1 or (is_crowded and seconds > self.seconds):
                request.skipped_steps += 1
                continue
            self.tokens -= 1
            self.seconds -= seconds
            taken.append(request)
        return taken

    def _seconds(self, prefills: list[Request], grants: list[int]) -> float:
        if not self._is_timed:
            return 0.0
        return sum(
            self._cost.marginal_seconds(request.computed_tokens, tokens)
            for request, tokens in zip(prefills, grants, strict=True)
            if tokens
        )
