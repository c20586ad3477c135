"""Where the time of an engine went: readings of its sums, what lies between two of them, and a table.

of a step    products, head, attention, model, sampling, runner, scheduling, detokenize, thread, idle
together     gemm (products and head), overhead (all around the forward pass)
beside it    publish (writes to the queue, waiting included) and the CPU time of the I/O loop
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from headway.engine.step_profile import Part, StepProfile
from headway.services.errors import ServiceError
from headway.services.worker_page import fetch_page

IDLE: Final = "idle"
THREAD: Final = "thread"
"""What is left of the engine's thread: commands taken, outputs handed over, flow control."""
MEANINGS: Final[Mapping[str, str]] = {
    Part.PRODUCTS: "matrix products of the layers",
    Part.HEAD: "product over the vocabulary",
    Part.ATTENTION: "attention",
    Part.MODEL: "rest of the forward pass (all of it where the runner does not tell more)",
    Part.SAMPLING: "choosing tokens",
    Part.RUNNER: "inputs packed, blocks copied",
    Part.SCHEDULING: "plan and apply",
    Part.DETOKENIZE: "ids to text",
    THREAD: "commands taken, outputs handed over",
    IDLE: "nothing to do",
}


GEMM: Final = "gemm"
OVERHEAD: Final = "overhead"
SUMS: Final[Mapping[str, tuple[str, ...]]] = {
    GEMM: (Part.PRODUCTS, Part.HEAD),
    OVERHEAD: (Part.SAMPLING, Part.RUNNER, Part.SCHEDULING, Part.DETOKENIZE, THREAD),
}
"""Parts that answer one question together. Told where the kernels tell their products: elsewhere ``model``
holds all of a pass, products and torch's dispatch alike, and a GPU is waited for in ``sampling``."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Sums since an engine's start."""

    at_seconds: float
    steps: int
    tokens: int
    seconds: Mapping[str, float]
    """By part of a step, ``idle`` too where there is a thread that can be."""
    publish_seconds: float = 0.0
    publishes: int = 0
    loop_cpu_seconds: float = 0.0
    computation: Mapping[str, str] = field(default_factory=dict[str, str])
    """What computes, in words: kernels, threads, weights."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What happened between two readings. Parts add up to ``wall_seconds``."""

    wall_seconds: float
    steps: int
    tokens: int
    seconds: Mapping[str, float]
    publish_seconds: float = 0.0
    publishes: int = 0
    loop_cpu_seconds: float = 0.0
    computation: Mapping[str, str] = field(default_factory=dict[str, str])
    context_tokens: float | None = None
    """Mean context of the sequences of decode steps; None: steps were of all kinds."""

    def per_step_ms(self, part: str) -> float:
        """Milliseconds of a part, or of one of ``SUMS``, in an average step."""
        return 1e3 * self._seconds_of(part) / self.steps if self.steps else 0.0

    def share(self, part: str) -> float:
        """Of a part, or of one of ``SUMS``, in the time that was not idle."""
        busy = self.wall_seconds - self.seconds.get(IDLE, 0.0)
        return self._seconds_of(part) / busy if busy > 0.0 else 0.0

    @property
    def sums(self) -> tuple[str, ...]:
        """Which ``SUMS`` can be told."""
        return tuple(SUMS) if self.seconds.get(Part.PRODUCTS, 0.0) > 0.0 else ()

    def _seconds_of(self, part: str) -> float:
        if part in SUMS:
            return sum(self.seconds.get(each, 0.0) for each in SUMS[part])
        return self.seconds[part]


def read_profile(profile: StepProfile, at_seconds: float) -> Reading:
    """An engine in this process."""
    seconds = {part.value: spent for part, spent in profile.seconds.items()}
    return Reading(at_seconds, profile.steps, profile.tokens, seconds)


def read_worker(url: str, at_seconds: float) -> Reading:
    """A live worker, by its metrics' URL; raises what ``fetch_page`` and ``parse_metrics`` do."""
    return parse_metrics(fetch_page(url, "metrics", command="profile"), at_seconds, url)


def parse_metrics(text: str, at_seconds: float, url: str) -> Reading:
    """A worker's metrics page; ServiceError when it is none, or its worker still loads the model."""
    from prometheus_client.parser import text_string_to_metric_families

    values: dict[str, float] = {}
    seconds: dict[str, float] = {}
    computation: dict[str, str] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "headway_engine_seconds":
                seconds[sample.labels["part"]] = sample.value
            elif sample.name == "headway_computation":
                computation = {name: words for name, words in sample.labels.items() if name != "model"}
            elif "le" not in sample.labels:
                values[sample.name] = sample.value
    if "headway_engine_steps" not in values:
        place = urlsplit(url if "//" in url else f"http://{url}").netloc
        raise ServiceError(f"{place} tells no times of steps: is it a worker, and has it loaded its model?")
    return Reading(
        at_seconds,
        int(values["headway_engine_steps"]),
        int(values["headway_engine_tokens"]),
        seconds,
        values.get("headway_publish_seconds_sum", 0.0),
        int(values.get("headway_publish_seconds_count", 0)),
        values.get("headway_loop_cpu_seconds", 0.0),
        computation,
    )


def between(before: Reading, after: Reading) -> Budget:
    """What happened from one reading to the next of the same engine; ServiceError if it began anew."""
    if after.steps < before.steps:
        raise ServiceError("the worker was started again meanwhile")
    wall = after.at_seconds - before.at_seconds
    seconds = {part: spent - before.seconds.get(part, 0.0) for part, spent in after.seconds.items()}
    # A part is booked when it ends: what was under way at a reading may be off by one of them.
    seconds[THREAD] = max(0.0, wall - sum(seconds.values()))
    return Budget(
        wall,
        after.steps - before.steps,
        after.tokens - before.tokens,
        seconds,
        after.publish_seconds - before.publish_seconds,
        after.publishes - before.publishes,
        after.loop_cpu_seconds - before.loop_cpu_seconds,
        after.computation,
    )


def as_lines(budget: Budget) -> list[str]:
    """The budget as a table; a line that says so when nothing ran."""
    if not budget.steps:
        return [f"no step in {budget.wall_seconds:.1f} s: the worker had nothing to do"]
    rate = budget.tokens / budget.wall_seconds
    lines = [
        f"{budget.steps} steps, {budget.tokens} tokens in {budget.wall_seconds:.1f} s: "
        f"{rate:.1f} tokens/s, {budget.tokens / budget.steps:.1f} tokens a step",
        f"{'':12}{'ms/step':>9}{'share':>8}",
    ]
    if budget.context_tokens is not None:
        lines[0] += f"; decodes only, at a context of {budget.context_tokens:.1f} tokens on average"
    for part, meaning in MEANINGS.items():
        if part in budget.seconds:
            share = "" if part == IDLE else f"{budget.share(part):8.1%}"
            lines.append(f"{part:12}{budget.per_step_ms(part):9.3f}{share:8}  {meaning}")
    lines += ["together:"] if budget.sums else []
    for name in budget.sums:
        told = ", ".join(SUMS[name])
        lines.append(f"{name:12}{budget.per_step_ms(name):9.3f}{budget.share(name):8.1%}  {told}")
    if budget.publishes:
        each = 1e3 * budget.publish_seconds / budget.publishes
        cpu = 1e3 * budget.loop_cpu_seconds / budget.steps
        lines += [
            "beside the steps, on the worker's I/O loop:",
            f"{'publish':12}{1e3 * budget.publish_seconds / budget.steps:9.3f}{'':8}  "
            f"writes to the queue, waiting included: {budget.publishes} of {each:.2f} ms",
            f"{'loop':12}{cpu:9.3f}{'':8}  CPU time of the loop, publishing included",
        ]
    return [*lines, *computation_lines(budget.computation)]


def computation_lines(computation: Mapping[str, str]) -> list[str]:
    """What computes, a line each."""
    return [f"{name:12}{words}" for name, words in computation.items()]


def as_json(budget: Budget) -> dict[str, object]:
    """The budget as values of JSON: seconds by part, and the shares of the sums."""
    told: dict[str, object] = {
        "wall_seconds": round(budget.wall_seconds, 6),
        "steps": budget.steps,
        "tokens": budget.tokens,
        "seconds": {part: round(spent, 6) for part, spent in budget.seconds.items()},
        "publish_seconds": round(budget.publish_seconds, 6),
        "publishes": budget.publishes,
        "loop_cpu_seconds": round(budget.loop_cpu_seconds, 6),
        "computation": dict(budget.computation),
        "shares": {name: round(budget.share(name), 4) for name in budget.sums},
    }
    if budget.context_tokens is not None:
        told["context_tokens"] = round(budget.context_tokens, 1)
    return told
