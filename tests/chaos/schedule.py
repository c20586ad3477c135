"""Which misfortune strikes whom, when and for how long: drawn from a seed, or read from a report."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Fault:
    """One misfortune. ``target``: a worker's place, the gateway's or the producers' link, by name."""

    at_seconds: float
    kind: str
    target: str
    seconds: float = 0.0
    """How long it lasts."""
    amount: float = 0.0
    """Milliseconds of a delay, or seconds that a clock is off."""

    def __str__(self) -> str:
        lasts = f" for {self.seconds:.2f} s" if self.seconds else ""
        return f"{self.at_seconds:8.2f} s  {self.kind:14} {self.target}{lasts}" + (
            f" ({self.amount:g})" if self.amount else ""
        )

    @classmethod
    def read(cls, fields: dict[str, Any]) -> Fault:
        """One of a report's."""
        return cls(**fields)


SERVER: Final = "server"
GATEWAY: Final = "gateway"
CLIENTS: Final = "clients"

WEIGHTS: Final = {
    "kill worker": 5.0,
    "stop worker": 4.0,
    "drain worker": 2.0,
    "kill server": 2.0,
    "restart server": 1.0,
    "rewrite log": 1.5,
    "flush functions": 2.0,
    "cut link": 5.0,
    "delay link": 3.0,
    "black hole": 3.0,
    "lose requests": 2.0,
    "lose replies": 3.0,
    "kill gateway": 1.5,
    "shift clock": 4.0,
}
"""How often each kind strikes, against the others. A killed worker is a killed reaper, since each of them
reaps; and one of the workers and gateways keeps the reservations."""


def draw(seed: int, seconds: float, workers: int, *, lease_seconds: float, every: float) -> tuple[Fault, ...]:
    """Faults over a time, on average one ``every`` so many seconds. The same for the same arguments."""
    rng = random.Random(f"faults {seed}")
    faults: list[Fault] = []
    at = rng.uniform(1.0, 2.0)
    places = [f"worker {place}" for place in range(workers)]
    kinds = [*WEIGHTS]
    # Each kind once, in any order, so that a short run meets all of them; then by their weights.
    first = rng.sample(kinds, len(kinds))
    while at < seconds:
        kind = first.pop() if first else rng.choices(kinds, [*WEIGHTS.values()])[0]
        faults.append(_fault(rng, at, kind, places, lease_seconds))
        at += rng.expovariate(1 / every)
    return tuple(faults)


def _fault(rng: random.Random, at: float, kind: str, places: list[str], lease_seconds: float) -> Fault:
    """One fault; each draws the same numbers, whatever its kind, so that a change of one moves no other."""
    place, link = rng.choice(places), rng.choice([*places, *places, GATEWAY, CLIENTS])
    clock = rng.choice([*places, GATEWAY])
    short, leases, is_long = rng.uniform(0.0, 1.2), rng.uniform(0.6, 3.0), rng.random() < 0.2
    # Longer than a lease as a rule, and now and then longer than the client library's time-out of 5 s.
    long = 5.5 + short if is_long else lease_seconds * leases
    target = {"worker": place, "server": SERVER, "log": SERVER, "functions": SERVER, "gateway": GATEWAY}
    seconds = {"kill": short, "drain": short, "restart": short, "stop": lease_seconds * leases}
    amount = {"delay link": rng.uniform(5.0, 200.0), "shift clock": rng.choice([-120.0, 120.0])}
    is_at_once = kind in ("rewrite log", "flush functions", "cut link", "shift clock")
    first, _, last = kind.partition(" ")
    return Fault(
        round(at, 3),
        kind,
        clock if kind == "shift clock" else target.get(last, link),
        seconds=0.0 if is_at_once else round(seconds.get(first, long), 2),
        amount=round(amount.get(kind, 0.0)),
    )
