"""Jobs that stream while everything breaks, and what the toy answers to each when nothing does."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from headway.engine.scripted import ByteTokenizer
from headway.engine.values import Sampling
from headway.queueing.messages import Job, Priority, SamplingParams
from headway.services.toy_model import parse_toy, toy_runner

TENANTS: Final = ("alpha", "beta", "gamma")
"""The first two have limits, so that their jobs hold reservations."""
WORDS: Final = ("rail", "tram", "ferry", "bus", "lift", "metro", "cable", "night")


@dataclass(frozen=True, slots=True)
class Order:
    """One job as its producer wants it, and by which ways it goes in and comes out."""

    number: int
    at_seconds: float
    job: Job
    posted_over_http: bool
    read_over_redis: bool
    read_over_http: bool
    cancel_after_seconds: float | None = None

    @property
    def text(self) -> str:
        """The whole answer of a calm run."""
        assert self.job.prompt is not None
        return calm_answer(self.job.prompt, self.job.sampling.max_tokens or 0)


@cache
def calm_answer(prompt: str, max_tokens: int) -> str:
    """What the toy answers to a greedy completion when nothing happens to it."""
    tokens = ByteTokenizer().encode(prompt, add_special_tokens=True)
    runner = toy_runner(parse_toy("scripted"))
    return bytes(runner.reference(tokens, Sampling(temperature=0), max_tokens)).decode()


def draw_orders(seed: int, count: int, seconds: float) -> tuple[Order, ...]:
    """So many jobs, spread over a time. The same for the same arguments."""
    rng = random.Random(f"orders {seed}")
    times = sorted(rng.uniform(0, seconds) for _ in range(count))
    return tuple(_order(rng, number, at) for number, at in enumerate(times))


def _order(rng: random.Random, number: int, at: float) -> Order:
    words = " ".join(rng.choices(WORDS, k=rng.randint(1, 12)))
    over_redis = rng.random() < 0.6
    kind = rng.random()
    job = Job(
        model="scripted",
        prompt=f"job {number} {words}",
        tenant=rng.choice(TENANTS),
        priority=rng.choice([*Priority]),
        deadline_seconds=round(rng.uniform(0.2, 3.0), 2) if kind < 0.04 else None,
        idempotency_key=f"order-{number}",
        sampling=SamplingParams(temperature=0, max_tokens=rng.randint(8, 90)),
    )
    return Order(
        number=number,
        at_seconds=at,
        job=job,
        posted_over_http=rng.random() < 0.4,
        read_over_redis=over_redis,
        read_over_http=not over_redis or rng.random() < 0.4,
        cancel_after_seconds=round(rng.uniform(0.0, 2.0), 2) if 0.04 <= kind < 0.12 else None,
    )


@dataclass(slots=True)
class Reading:
    """What one reader saw of one job: cursors with their tokens, texts, ends."""

    way: str
    cursors: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    """Of each token entry its cursor's tokens and part, and how many tokens it brought."""
    texts: list[str] = field(default_factory=list[str])
    ends: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Reason and error code of each terminal event."""
    after_end: int = 0
    """Events behind the first terminal one."""
    reconnects: int = 0

    @property
    def text(self) -> str:
        return "".join(self.texts)


@dataclass(slots=True)
class Outcome:
    """What became of an order."""

    order: Order
    job_id: str | None = None
    """None: never accepted."""
    tries: int = 0
    was_cancelled: bool = False
    readings: list[Reading] = field(default_factory=list[Reading])
    problems: list[str] = field(default_factory=list[str])
    """What a caller met that none should meet."""
