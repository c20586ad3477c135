"""What must be true of a run: of each job as its readers saw it, and of the server when all is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import redis
from tests.chaos.workload import Outcome, Reading

from headway.queueing.codec import decode_events
from headway.queueing.events import EndEvent

TAG: Final = "{scripted:0}"
SHORTENED: Final = frozenset({"cancelled", "deadline"})
GIVEN_UP: Final = ("error", "too_many_attempts")
FOR_GOOD: Final = frozenset(
    {
        *("lane", "weights", "wake", "dlq", "recent", "settle", "models", "tenants", "keys", "config"),
        "place",  # which queue this is
        # Their members have lifetimes, looked at by whoever adds the next one.
        *("rates", "workers", "seen", "tenant"),
    }
)
"""The kinds of keys that queueing/keys.py says are kept for good, or as long as they have members."""
EMPTY_IN_THE_END: Final = ("lease", "due")


def of_reading(outcome: Outcome, reading: Reading) -> list[str]:
    """What is wrong with what one reader saw."""
    wrong: list[str] = []
    if len(reading.ends) != 1 or reading.after_end:
        wrong.append(f"ends {reading.ends}, {reading.after_end} events after the first")
    before = 0
    for tokens, part, new in reading.cursors:
        if tokens != before + new or part != 0 or new == 0:
            wrong.append(f"after {before} tokens came {new} more as {tokens}-{part}")
            break
        before = tokens
    text, whole = reading.text, outcome.order.text
    reason = reading.ends[0] if reading.ends else ("", "")
    if reason[0] == "length":
        if text != whole:
            wrong.append(f"read {text!r}, the calm run's answer is {whole!r}")
    elif not (reason[0] in SHORTENED or reason == GIVEN_UP):
        wrong.append(f"ended as {reason}")
    elif not whole.startswith(text):
        wrong.append(f"read {text!r}, which does not begin the calm run's answer {whole!r}")
    return [f"order {outcome.order.number} over {reading.way}: {each}" for each in wrong]


def of_outcome(outcome: Outcome) -> list[str]:
    """What is wrong with one job, as seen from outside."""
    name = f"order {outcome.order.number}"
    wrong = [f"{name}: {problem}" for problem in outcome.problems]
    if outcome.job_id is None or not outcome.readings:
        return [*wrong, f"{name} was never accepted"]
    for reading in outcome.readings:
        wrong += of_reading(outcome, reading)
    if len({(tuple(reading.ends), reading.text) for reading in outcome.readings}) > 1:
        wrong.append(f"{name}: its readers saw different streams")
    reason = outcome.readings[0].ends[0][0] if outcome.readings[0].ends else ""
    if reason == "cancelled" and outcome.order.cancel_after_seconds is None:
        wrong.append(f"{name} was cancelled by nobody")
    if reason == "deadline" and outcome.order.job.deadline_seconds is None:
        wrong.append(f"{name} had no deadline")
    return wrong


def of_server(url: str, outcomes: Sequence[Outcome]) -> list[str]:
    """What is wrong with what the server holds when all is over."""
    with redis.Redis.from_url(url) as raw:
        return [
            *_of_jobs(raw, outcomes),
            *_of_lane(raw),
            *_of_lifetimes(raw),
            *_of_quotas(raw),
        ]


def _of_jobs(raw: Any, outcomes: Iterable[Outcome]) -> list[str]:
    wrong: list[str] = []
    ended: Counter[str] = Counter()
    for _, fields in raw.xrange(f"recent:{TAG}"):
        ended[fields[b"job"].decode()] += 1
    wrong += [f"{key} ended {times} times" for key, times in ended.items() if times > 1]
    for key in (outcome.job_id.rpartition(":")[2] for outcome in outcomes if outcome.job_id):
        if raw.hget(f"j:{TAG}:{key}", "state") != b"finished":
            wrong.append(f"{key} is not finished in the end")
        entries = [
            (name, [p for pair in f.items() for p in pair]) for name, f in raw.xrange(f"o:{TAG}:{key}")
        ]
        ends = [event for event in decode_events(entries) if isinstance(event, EndEvent)]
        if entries and len(ends) != 1:
            wrong.append(f"{key} has {len(ends)} terminal entries")
    return wrong


def _of_lane(raw: Any) -> list[str]:
    wrong = [
        f"{kind} still has {raw.zcard(f'{kind}:{TAG}')}"
        for kind in EMPTY_IN_THE_END
        if raw.zcard(f"{kind}:{TAG}")
    ]
    for pattern in (f"q:{TAG}:*", f"turn:{TAG}:*", f"back:{TAG}:*"):
        wrong += [f"{key.decode()} is not empty" for key in raw.keys(pattern)]
    books = raw.hgetall(f"lane:{TAG}")
    for name, value in books.items():
        if name.startswith((b"jobs:", b"tokens:", b"returned:")) and float(value) != 0:
            wrong.append(f"the lane's book {name.decode()} says {value.decode()}")
    if raw.xlen(f"settle:{TAG}"):
        wrong.append(f"{raw.xlen(f'settle:{TAG}')} ends are not settled")
    return wrong


def _of_lifetimes(raw: Any) -> list[str]:
    return [
        f"{key.decode()} is kept for good"
        for key in raw.scan_iter(count=1000)
        if raw.ttl(key) == -1 and key.decode().partition(":")[0] not in FOR_GOOD
    ]


def _of_quotas(raw: Any) -> list[str]:
    """No reservation is in flight. One that lapsed, its job never posted, is remembered for a day."""
    wrong = [f"{key.decode()} still holds {raw.zcard(key)}" for key in raw.keys("inf:*") + raw.keys("wait:*")]
    for key in raw.keys("res:*"):
        held = set(raw.hkeys(key)) - set(raw.zrange(key.replace(b"res:", b"gone:", 1), 0, -1))
        wrong += [f"{key.decode()} still holds {job.decode()}" for job in held]
    return wrong
