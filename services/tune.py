"""``headway tune``: the settings that serve a trace best within its limits, by simulation, tried for real."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from headway.services.arrivals import Arrival, burst, fitting_scale, lengths_of, replay, scaled
from headway.services.calibrate import load_host
from headway.services.engine_run import EngineRun
from headway.services.errors import UsageError
from headway.services.predict import predict
from headway.services.settings import WorkerSettings
from headway.services.simulated_device import Device
from headway.services.simulation_report import Limits, report
from headway.services.simulation_run import SimulationRun
from headway.services.traffic import Demand
from headway.services.tune_search import REPLICATES, Score, Tried, search
from headway.services.tune_space import Candidate, current, grid

Show = Callable[[str], None]
CONFIRMED: Final = 2
"""How many of the best are tried on the real engine."""
SAME_MEASURED: Final = 0.05
"""Goodputs that are nearer than this share of the best are equal: each is of one short run, whose noise is
larger, and the eight simulated loads tell more then.
"""
NO_ANSWER_SECONDS: Final = 1e6
"""P99 of the wait where nobody got an answer."""


@dataclass(frozen=True, slots=True)
class TuneLoad:
    """What is to be served. ``rate`` None: as the trace came, ``rate_scale`` times as fast; else so many
    requests a second at random, of the trace's lengths. ``seconds``: of each load that settings are tried on.
    """

    trace: tuple[Arrival, ...]
    rate: float | None
    rate_scale: float
    length_scale: float | None
    """None: so that the trace's longest request fits the model's context."""
    seconds: float
    seed: int

    def check(self, confirm_seconds: float | None) -> None:
        """Raise UsageError where a load has no request, or none in the piece that is tried for real."""
        loads = [self._arrivals(replicate) for replicate in range(REPLICATES)]
        if not all(loads):
            raise UsageError(
                "no request comes in one of the loads",
                hint="longer --duration, or more --rate-scale or --rate",
            )
        if confirm_seconds is not None and loads[0][0].seconds > confirm_seconds:
            raise UsageError(
                f"no request comes in the first {confirm_seconds:g} s of the load, in which settings are "
                "tried on the real engine",
                hint="longer --confirm-duration, more --rate-scale or --rate, or --no-confirm",
            )

    def demands(self, replicate: int, longest_tokens: int) -> list[Demand]:
        """The requests of one load, the same for every setting; prompts are cut to what fits."""
        scale = self.scale(longest_tokens)
        return [self._demand(arrival, scale, longest_tokens) for arrival in self._arrivals(replicate)]

    def scale(self, longest_tokens: int) -> float:
        """What the trace's lengths are multiplied with, for a context of so many tokens."""
        if self.length_scale is not None:
            return self.length_scale
        return fitting_scale([arrival.lengths for arrival in self.trace], longest_tokens)

    def _arrivals(self, replicate: int) -> list[Arrival]:
        drawn = Random(f"{self.seed} {replicate}")
        return self._drawn(drawn) if self.rate is not None else self._window(drawn)

    def _drawn(self, drawn: Random) -> list[Arrival]:
        assert self.rate is not None
        return list(burst(self.rate, self.seconds, 1.0, lengths_of(self.trace), drawn))

    def _window(self, drawn: Random) -> list[Arrival]:
        """A piece of the trace that begins anywhere; a trace shorter than that is taken whole."""
        whole = list(replay(self.trace, self.rate_scale, None))
        start = drawn.random() * max(0.0, whole[-1].seconds - self.seconds)
        return [
            Arrival(arrival.seconds - start, arrival.lengths)
            for arrival in whole
            if start <= arrival.seconds <= start + self.seconds
        ]

    @staticmethod
    def _demand(arrival: Arrival, scale: float, longest_tokens: int) -> Demand:
        lengths = scaled(arrival.lengths, scale)
        answer = min(lengths.answer_tokens, max(1, longest_tokens // 2))
        prompt = min(lengths.prompt_tokens, longest_tokens - answer)
        return Demand(arrival.seconds, "default", 0, prompt, answer)


@dataclass(frozen=True, slots=True)
class Confirmed:
    """One setting on the real engine, beside what the simulation says of the very same requests."""

    candidate: Candidate
    predicted: dict[str, Any]
    measured: dict[str, Any]
    seconds: float
    """In which its requests came."""

    @property
    def goodput(self) -> float:
        """As measured, requests a second."""
        return float(self.measured["goodput_per_second"])

    @property
    def predicted_goodput(self) -> float:
        """Of the same requests, by simulation."""
        return float(self.predicted["goodput_per_second"])


@dataclass(frozen=True, slots=True)
class Tuned:
    """The outcome. ``best``: by the real engine where it was asked, else by simulation."""

    best: Tried[Candidate]
    usual: Tried[Candidate]
    finalists: list[Tried[Candidate]]
    confirmed: list[Confirmed]
    tried: int
    offered: float
    """Requests a second, on average over the loads."""
    length_scale: float
    """What the trace's lengths were multiplied with."""

    @property
    def proof(self) -> Confirmed | None:
        """The best setting on the real engine; None: only simulated."""
        return next((one for one in self.confirmed if one.candidate == self.best.candidate), None)


class Tuner:
    """One search. ``device_for(seed)``: the device, with its unrest drawn from a seed.

    ``candidates``: what to choose among, the worker's own included; None: the grid.
    """

    def __init__(
        self,
        worker: WorkerSettings,
        device_for: Callable[[int], Device],
        load: TuneLoad,
        limits: Limits,
        *,
        show: Show,
        candidates: Sequence[Candidate] | None = None,
    ) -> None:
        self._worker = worker
        self._device_for = device_for
        self._limits = limits
        self._load = load
        self._show = show
        self._candidates = candidates
        self._longest = device_for(0).max_model_len
        self._demands = [load.demands(replicate, self._longest) for replicate in range(REPLICATES)]

    def run(self, confirm_seconds: float | None) -> Tuned:
        """Search, and try the best on the real engine for so long each; None: only simulate.

        Raises UsageError where there is nothing to serve.
        """
        self._load.check(confirm_seconds)
        usual = current(self._worker)
        candidates = self._candidates or grid(self._worker, self._device_for(0).kv_tokens)
        finalists = search(candidates, self._trial, always=usual, show=self._show)
        best = finalists[0]
        confirmed: list[Confirmed] = []
        if confirm_seconds is not None:
            confirmed = [self._confirm(one.candidate, confirm_seconds) for one in finalists[:CONFIRMED]]
            first = choose(confirmed)
            best = next(one for one in finalists if one.candidate == first.candidate)
        return Tuned(
            best,
            next(one for one in finalists if one.candidate == usual),
            finalists,
            confirmed,
            len(candidates),
            sum(map(len, self._demands)) / (REPLICATES * self._load.seconds),
            self._load.scale(self._longest),
        )

    def _trial(self, candidate: Candidate, replicate: int) -> Score:
        figures = self._predict(candidate, self._demands[replicate], replicate, self._load.seconds)
        return Score(figures["goodput_per_second"], figures["ttft_p99"])

    def _predict(
        self, candidate: Candidate, demands: Sequence[Demand], replicate: int, seconds: float
    ) -> dict[str, Any]:
        worker = candidate.apply(self._worker, self._limits)
        run = predict(worker, self._device_for(replicate), demands, self._limits)
        return summary(run, self._limits, seconds)

    def _confirm(self, candidate: Candidate, confirm_seconds: float) -> Confirmed:
        # Past its end no request of the load comes: that time would only make goodput look low.
        seconds = min(confirm_seconds, self._load.seconds)
        demands = [demand for demand in self._demands[0] if demand.seconds <= seconds]
        worker = candidate.apply(self._worker, self._limits)
        self._show(f"the real engine with {worker.max_batch_tokens} tokens, {worker.max_sequences} sequences")
        host = load_host(worker)
        real = EngineRun(host.engine, host.model.tokenizer.vocab_size, self._limits.tpot_seconds)
        # Thrown away: first uses of buffers and code.
        real.run([replace(demand, seconds=0.0) for demand in demands[: worker.max_sequences]])
        measured = summary(real.run(demands), self._limits, seconds)
        return Confirmed(candidate, self._predict(candidate, demands, 0, seconds), measured, seconds)


def choose(confirmed: Sequence[Confirmed]) -> Confirmed:
    """The one of most measured goodput; of those as good as one run can tell, the first.

    ``confirmed``: best predicted first.
    """
    least = (1 - SAME_MEASURED) * max(one.goodput for one in confirmed)
    return next(one for one in confirmed if one.goodput >= least)


def summary(run: SimulationRun, limits: Limits, seconds: float) -> dict[str, Any]:
    """What settings are chosen by, of a run whose requests came in ``seconds``.

    Goodput counts over the time in which requests came: how long the last of them still ran says nothing.
    """
    figures = report(run, limits, {})
    ttft = figures["ttft_seconds"]["p99"]
    return {
        "goodput_per_second": round(figures["goodput_share"] * figures["requests"] / seconds, 4),
        "goodput_share": figures["goodput_share"],
        "ttft_p99": NO_ANSWER_SECONDS if ttft is None else ttft,
        "tpot_p99": figures["tpot_seconds"]["p99"],
        "tokens_per_second": figures["tokens_per_second"],
        "requests": figures["requests"],
    }
