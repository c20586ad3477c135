"""One lane of MemoryQueue: its jobs, the order in which they are served, and what the ended ones left."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from headway.queueing.backlog import EndedJob, Settlement, TenantBacklog
from headway.queueing.events import EndReason, JobState
from headway.queueing.memory_band import Band
from headway.queueing.memory_record import Record
from headway.queueing.memory_usage import UsedDays
from headway.queueing.messages import Priority, down_to
from headway.queueing.protocol import DeadLetter, LaneDepth
from headway.queueing.settings import AGED_EVERY, QueueSettings

DEAD_LETTERS_KEPT: Final = 1000
RECENT_KEPT: Final = 1000
AGED_TENANTS: Final = 4
"""Whose next jobs are looked at for their age; lua/claim.lua says why."""
ANSWERED_DECAY: Final = 0.99
ANSWER_GAIN: Final = 0.05
RATE_DECAY: Final = 0.99
PRESSED_GAIN: Final = 0.2
"""As in lua/upkeep.lua."""


@dataclass(frozen=True, slots=True)
class Head:
    """A job that may be served next."""

    record: Record
    is_returned: bool = False
    is_early: bool = False
    """Not its tenant's turn."""


@dataclass(slots=True)
class Lane:
    """The jobs of one model. Everything here happens at once, as in a function of the server."""

    records: dict[str, Record] = field(default_factory=dict[str, Record])
    bands: dict[Priority, Band] = field(default_factory=lambda: {band: Band() for band in Priority})
    returned: dict[Priority, deque[Record]] = field(
        default_factory=lambda: {band: deque() for band in Priority}
    )
    weights: dict[str, float] = field(default_factory=dict[str, float])
    rates: dict[str, tuple[float, int, bool]] = field(default_factory=dict[str, tuple[float, int, bool]])
    """By worker: tokens per second, and until when (ms) that counts."""
    answers: dict[str, float] = field(default_factory=dict[str, float])
    """By tenant: tokens of its usual answer."""
    answered: float = 0.0
    estimated: float = 0.0
    has_waited: bool = False
    """Whether jobs waited at the last report of a rate."""
    pressed_ms: int = 0
    """When they did at two in a row."""
    dead: deque[tuple[DeadLetter, bytes]] = field(default_factory=lambda: deque(maxlen=DEAD_LETTERS_KEPT))
    recent: deque[EndedJob] = field(default_factory=lambda: deque(maxlen=RECENT_KEPT))
    settlements: dict[str, Settlement] = field(default_factory=dict[str, Settlement])
    used: UsedDays = field(default_factory=UsedDays)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))
    since_aged: int = AGED_EVERY

    # -- order ----------------------------------------------------------------------------------------

    @property
    def queued_jobs(self) -> int:
        """How many jobs wait, over all bands."""
        return sum(band.jobs for band in self.bands.values()) + sum(map(len, self.returned.values()))

    @property
    def running_jobs(self) -> int:
        """How many jobs workers hold."""
        return sum(record.state is JobState.RUNNING for record in self.records.values())

    @property
    def queued_tokens(self) -> int:
        """Their estimated tokens, without those that came back."""
        return sum(sum(band.tokens.values()) for band in self.bands.values())

    def weight_of(self, tenant: str) -> float:
        """A tenant's weight; 1 where none is set."""
        weight = self.weights.get(tenant, 1.0)
        return weight if 0 < weight < 1e9 else 1.0

    def choose(self, now_ms: int, settings: QueueSettings, least: Priority) -> Head | None:
        """The job to serve, of this class or a better one: the best band's next, or an aged one."""
        filled = [band for band in down_to(least) if self.returned[band] or self.bands[band].jobs]
        if not filled:
            return None
        aged = self._aged(filled, now_ms, settings) if len(filled) > 1 else None
        goes_ahead = aged is not None and aged.record.priority is not filled[0]
        self.since_aged = 0 if goes_ahead else min(self.since_aged + 1, AGED_EVERY)
        return aged if aged is not None and goes_ahead else next(self._heads(filled[0], 1))

    def _heads(self, band: Priority, limit: int) -> Iterator[Head]:
        if self.returned[band]:
            yield Head(self.returned[band][0], is_returned=True)
        for place, tenant in enumerate(self.bands[band].next_tenants(limit)):
            yield Head(self.bands[band].next_job(tenant), is_early=place > 0)

    def _aged(self, filled: list[Priority], now_ms: int, settings: QueueSettings) -> Head | None:
        """The oldest of the bands' first aged jobs; None while it is not their turn."""
        if self.since_aged < AGED_EVERY - 1:
            return None
        limits = {
            Priority.STANDARD: settings.standard_age_seconds * 1000,
            Priority.BATCH: settings.batch_age_seconds * 1000,
        }
        aged = [
            next((head for head in self._heads(band, AGED_TENANTS) if age(head, now_ms) > limits[band]), None)
            for band in filled
            if band in limits
        ]
        return min(filter(None, aged), key=lambda head: head.record.created_ms, default=None)

    def take(self, head: Head, now_ms: int) -> None:
        """Take a job out of its queue, in its turn or ahead of it."""
        record = head.record
        if not head.is_returned and not head.is_early:
            self.bands[record.priority].start(record.tenant)
        self.remove(record, now_ms)

    def add(self, record: Record, now_ms: int) -> None:
        """Put a new job into its tenant's backlog."""
        self.bands[record.priority].add(record, now_ms)

    def remove(self, record: Record, now_ms: int) -> None:
        """Take a waiting job out."""
        if record in self.returned[record.priority]:
            self.returned[record.priority].remove(record)
        else:
            self.bands[record.priority].remove(record, now_ms)

    def charge(self, record: Record, tokens: float) -> None:
        """Charge a job's tenant for service, or give back."""
        self.bands[record.priority].charge(record.tenant, tokens, self.weight_of(record.tenant))

    # -- traces ---------------------------------------------------------------------------------------

    def bury(self, record: Record, reason: str) -> None:
        """Add a job to the dead letters."""
        letter = DeadLetter(
            entry_id=f"{next(self.numbers)}-0",
            job_id=record.job_id,
            tenant=record.tenant,
            reason=reason,
            attempts=record.attempts,
            committed_tokens=record.status().committed_tokens,
        )
        self.dead.append((letter, record.body))

    def tell(self, record: Record, reason: EndReason, prompt_tokens: int) -> None:
        """Note a job's end for operators, and for the quotas."""
        tokens = record.status().committed_tokens
        self.recent.append(
            EndedJob(
                record.job_id,
                record.tenant,
                record.priority,
                reason,
                completion_tokens=tokens,
                created_ms=record.created_ms,
                ended_ms=record.finished_ms,
            )
        )
        self.used.count(record.tenant, prompt_tokens, tokens, record.finished_ms)
        if record.reserved:
            entry_id = f"{next(self.numbers)}-0"
            self.settlements[entry_id] = Settlement(
                entry_id, record.job_id, record.tenant, record.reserved, prompt_tokens, tokens, reason
            )

    # -- figures --------------------------------------------------------------------------------------

    def learn(self, record: Record) -> None:
        """Note how long a job's whole answer got."""
        self.answered = self.answered * ANSWERED_DECAY + record.status().committed_tokens
        self.estimated = self.estimated * ANSWERED_DECAY + record.cost
        tokens = record.status().committed_tokens
        usual = self.answers.get(record.tenant, tokens)
        self.answers[record.tenant] = usual + ANSWER_GAIN * (tokens - usual)

    def expected_of(self, record: Record) -> float:
        """Tokens to charge for a job: its prompt, and an answer as long as its tenant's usual ones."""
        usual = self.answers.get(record.tenant)
        return record.cost if usual is None else min(record.cost, record.prompt_estimate + usual)

    @property
    def answered_share(self) -> float:
        """How much of the estimates gets answered."""
        return self.answered / self.estimated if self.estimated > 0 else 1.0

    def forget_tenants(self, now_ms: int) -> None:
        """Forget tenants that have not waited for long."""
        for band in self.bands.values():
            band.forget(now_ms)
        known = {tenant for band in self.bands.values() for tenant in band.known_tenants}
        self.answers = {tenant: usual for tenant, usual in self.answers.items() if tenant in known}

    def report(self, worker_id: str, tokens_per_second: float, now_ms: int, ttl_ms: int) -> None:
        """Note what a worker can do: its best lately, or while jobs wait the mean of what it does."""
        best, _, was_pressed = self.rates.get(worker_id, (0.0, 0, False))
        is_pressed, self.has_waited = self.queued_jobs > 0 and self.has_waited, self.queued_jobs > 0
        if not is_pressed:
            rate = max(tokens_per_second, best * RATE_DECAY)
        else:
            self.pressed_ms = now_ms
            # The mean begins at the better of both: what it showed with little to do would for seconds make a
            # burst look hopeless. No token in a second says nothing: a long prompt may be in work.
            is_known = was_pressed and best > 0 and tokens_per_second > 0
            mean = best + PRESSED_GAIN * (tokens_per_second - best)
            rate = mean if is_known else max(tokens_per_second, best)
        self.rates[worker_id] = (rate, now_ms + ttl_ms, is_pressed)

    def rate(self, now_ms: int) -> float:
        """Tokens per second of all workers; 0: not known."""
        return sum(rate for rate, until_ms, _ in self.rates.values() if until_ms > now_ms)

    def seconds_for(self, tokens: float, now_ms: int) -> float | None:
        """Predicted time to serve estimated tokens; None while no rate is known."""
        rate = self.rate(now_ms)
        if rate <= 0:
            return None
        return tokens * self.answered_share / rate

    def depth(self, now_ms: int) -> LaneDepth:
        """See ``Queue.depth``."""
        return LaneDepth(
            queued={band: self.bands[band].jobs + len(self.returned[band]) for band in Priority},
            running=self.running_jobs,
            dead_letters=len(self.dead),
            queued_tokens=self.queued_tokens,
            tokens_per_second=self.rate(now_ms),
            wait_seconds=self.seconds_for(self.queued_tokens, now_ms),
        )

    def tenants(self) -> tuple[TenantBacklog, ...]:
        """See ``Queue.tenants``."""
        return tuple(
            TenantBacklog(
                tenant,
                priority,
                jobs=len(band.jobs_of(tenant)),
                tokens=band.tokens[tenant],
                next_created_ms=band.next_job(tenant).created_ms,
                virtual_time=band.time_of(tenant),
                weight=self.weight_of(tenant),
            )
            for priority, band in self.bands.items()
            for tenant in band.next_tenants()
        )


def age(head: Head, now_ms: int) -> int:
    """Milliseconds since a job was accepted."""
    return now_ms - head.record.created_ms
