"""Measures this machine with a model in about a minute: real steps of a real engine, over what serving meets.

So many requests at a time, of lengths from a few tokens to most of the context, change from moment to moment;
each pass of the engine's loop is timed whole, plan and text included. The numbers of requests come round
several times, so that a pause of the machine does not fall on one of them alone.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from headway.engine.engine import Engine
from headway.engine.errors import ModelError
from headway.engine.timeline import StepEvent
from headway.engine.values import FinishReason, RequestSpec, Sampling
from headway.services.calibration import Calibration
from headway.services.errors import ServiceError, UsageError
from headway.services.hardware import MODELS, StepWork
from headway.services.live_steps import LiveSteps
from headway.services.model_host import ModelHost, build_engine
from headway.services.processor import processor_name
from headway.services.settings import WorkerSettings
from headway.services.step_fit import Measured, fit
from headway.services.trace_file import fetch_trace

CHUNK_TOKENS: Final = 1024
"""Most tokens of a step while measuring: more than services allow, so that larger budgets are known."""
ROUNDS: Final = 4
MOST_ANSWER: Final = 160
SHORTEST_PROMPT: Final = 4
SHORT_PROMPT: Final = 48
"""In every other round none is longer: else many at a time would be prefills only, never decodes alone."""
_SAMPLING: Final = Sampling(temperature=0.0, ignore_eos=True)
Show = Callable[[str], None]


def show_nothing(_text: str) -> None:
    """For who wants no progress."""


def measuring_settings(settings: WorkerSettings) -> WorkerSettings:
    """The worker's own, but for what would keep steps from having all shapes."""
    return replace(
        settings,
        policy="fixed-chunks",
        max_batch_tokens=max(CHUNK_TOKENS, settings.max_batch_tokens),
        is_overcommitted=False,
        has_prefix_cache=False,
        ttft_seconds=None,
        tpot_seconds=None,
    )


def load_host(settings: WorkerSettings) -> ModelHost:
    """The model on an engine of these settings. Raises UsageError for one that cannot be loaded."""
    try:
        return build_engine(settings)
    except ModelError as error:
        raise UsageError(str(error)) from None


class StepWatch:
    """Steps one engine through loads of its own, and keeps what each step computed and took."""

    def __init__(
        self, host: ModelHost, max_sequences: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._engine: Engine = host.engine
        self._vocab_size = host.model.tokenizer.vocab_size
        self._longest = host.model.max_model_len
        self._most = max_sequences
        self._clock = clock
        self._random = random.Random(7)
        self._serial = itertools.count(1)
        self._computed: dict[str, int] = {}
        self.steps: list[Measured] = []

    def warm_up(self) -> None:
        """One of each size, thrown away: first uses of buffers and code."""
        for count in self.counts():
            self._phase(count, 0.0)
        self.steps.clear()

    def measure(self, seconds: float, rounds: int = ROUNDS, show: Show = show_nothing) -> None:
        """Keep all numbers of requests running for ``seconds`` in all."""
        counts = self.counts()
        share = seconds / (rounds * len(counts))
        for number in range(rounds):
            for count in self._random.sample(counts, len(counts)):
                self._phase(count, share, is_short=number % 2 == 1)
                show(f"round {number + 1} of {rounds}, {count:3} at a time: {len(self.steps):6} steps")

    def counts(self) -> list[int]:
        """Numbers of requests that run at a time: powers of two, and the most there may be."""
        return sorted({min(1 << power, self._most) for power in range(self._most.bit_length() + 1)})

    def _phase(self, count: int, seconds: float, *, is_short: bool = False) -> None:
        """Keep ``count`` running until the time is over, then cut them off."""
        until = self._clock() + seconds
        for spec in itertools.islice(self._specs(is_short), count):
            self._add(spec)
        while True:
            started = self._clock()
            self._step(started)
            if self._clock() >= until:
                break
            for spec in itertools.islice(self._specs(is_short), count - len(self._computed)):
                self._add(spec)
        for request in list(self._computed):
            self._engine.cancel(request, FinishReason.CANCELLED)
        while self._engine.has_work:
            self._engine.step(self._clock())
        self._computed.clear()

    def _add(self, spec: RequestSpec) -> None:
        self._computed[spec.request_id] = 0
        self._engine.add(spec)

    def _step(self, started: float) -> None:
        before = self._engine.load.steps
        outputs = self._engine.step(started)
        seconds = self._clock() - started
        if self._engine.load.steps > before:
            self.steps.append(Measured(self._work(self._engine.timeline.steps[-1]), seconds))
        for output in outputs:
            if output.finish_reason is not None:
                self._computed.pop(output.key.request_id, None)

    def _work(self, step: StepEvent) -> StepWork:
        new = zip((key.request_id for key in step.keys), step.tokens, strict=True)
        return StepWork.after(self._computed, new, sum(step.samples))

    def _specs(self, is_short: bool) -> Iterator[RequestSpec]:
        """Requests of all lengths, evenly on a logarithmic scale: there are many short ones everywhere."""
        longest_answer = min(MOST_ANSWER, self._longest // 4)
        longest_prompt = max(SHORTEST_PROMPT + 1, self._longest - longest_answer - 1)
        if is_short:
            longest_prompt = min(longest_prompt, SHORT_PROMPT)
        while True:
            prompt = _log_uniform(self._random, SHORTEST_PROMPT, longest_prompt)
            ids = tuple(self._random.choices(range(self._vocab_size), k=prompt))
            answer = _log_uniform(self._random, 2, max(3, longest_answer))
            yield RequestSpec(f"calibrate-{next(self._serial)}", 0, ids, _SAMPLING, answer)


def _log_uniform(drawn: random.Random, low: int, high: int) -> int:
    return round(low * math.exp(math.log(high / low) * drawn.random()))


def calibrate(settings: WorkerSettings, seconds: float, show: Show = show_nothing) -> Calibration:
    """Load, measure, fit. Raises UsageError for a model that is not there, ServiceError for too few steps."""
    show(f"loading {settings.model}")
    host = load_host(measuring_settings(settings))
    watch = StepWatch(host, settings.max_sequences)
    watch.warm_up()
    watch.measure(seconds, show=show)
    return calibration_of(host, settings, watch.steps)


def calibrate_live(url: str, seconds: float, show: Show = show_nothing) -> Calibration:
    """Fit the steps that a worker takes meanwhile, under whatever load it has; ``url``: of its metrics."""
    live = LiveSteps(lambda: fetch_trace(url))
    facts = live.collect(seconds, show)
    return calibration_of_live(live.steps, facts, url)


def calibration_of_live(steps: list[Measured], facts: Mapping[str, Any], url: str) -> Calibration:
    """What a live worker's steps come to; ``facts``: what its trace tells of it."""
    try:
        fitted = fit(steps)
    except ValueError as error:
        raise ServiceError(str(error), hint="let it work meanwhile: headway bench") from None
    block_size = int(facts["settings"]["block_size"])
    return Calibration(
        model=str(facts["model"]),
        line=fitted.line,
        kv_tokens=int(facts["kv_blocks"]) * block_size,
        max_model_len=int(facts["max_model_len"]),
        kv_bytes_per_token=_kv_bytes_per_token(facts),
        host_bandwidth=0.0,
        copies_beside=False,
        steps=fitted.steps,
        error_median=fitted.error_median,
        machine=url,
    )


def _kv_bytes_per_token(facts: Mapping[str, Any]) -> int:
    """As the worker tells it; of an older one that of a model known by name in bfloat16, else 0."""
    if (told := facts.get("kv_bytes_per_token")) is not None:
        return int(told)
    shape = MODELS.get(str(facts["model"]))
    return shape.kv_bytes_per_token if shape is not None else 0


def calibration_of(host: ModelHost, settings: WorkerSettings, steps: list[Measured]) -> Calibration:
    """What the steps come to; raises ServiceError when they are too few."""
    try:
        fitted = fit(steps)
    except ValueError as error:
        raise ServiceError(str(error), hint="more --seconds") from None
    sizes = host.sizes
    return Calibration(
        model=settings.model,
        line=fitted.line,
        kv_tokens=sizes.block_count * sizes.block_size,
        max_model_len=host.model.max_model_len,
        kv_bytes_per_token=sizes.bytes_per_token,
        host_bandwidth=sizes.host_bandwidth,
        copies_beside=sizes.copies_beside,
        steps=fitted.steps,
        error_median=fitted.error_median,
        machine=processor_name(),
    )
