"""Protocols that are wrong in one rule, and the smallest world in which that shows: the model can fail."""

from __future__ import annotations

from typing import Final, NamedTuple

from tests.model.states import Bounds, Rules

PLAIN: Final = Bounds(tokens=1, has_cancel=False, has_late_calls=False, has_slow_news=False, has_drain=False)
LATE: Final = PLAIN._replace(has_late_calls=True)
CANCELLED: Final = PLAIN._replace(has_cancel=True)
TWO_TOKENS: Final = PLAIN._replace(tokens=2)
FAILOVER: Final = PLAIN._replace(failovers=1, has_reader=True)
READ: Final = TWO_TOKENS._replace(has_reader=True)


class Mutant(NamedTuple):
    """One rule set the other way."""

    rule: str
    bounds: Bounds
    breaks: str
    """A part of the promise that it breaks."""
    without: tuple[str, ...] = ()
    """Other rules that would stand in for it."""

    @property
    def rules(self) -> Rules:
        return Rules(**dict.fromkeys((self.rule, *self.without), False))


ZOMBIE: Final = "a worker that lost a job changes nothing"
OWNERS: Final = "two workers never own a job"
WAITS: Final = "in the waiting list exactly while it waits"
STREAM: Final = "tokens come in order, each once"

MUTANTS: Final = (
    Mutant("emit_is_fenced", PLAIN, OWNERS),
    Mutant("finish_is_fenced", PLAIN, "a job that ended does not change"),
    Mutant("renew_is_fenced", PLAIN, ZOMBIE),
    Mutant("release_is_fenced", PLAIN._replace(has_drain=True), ZOMBIE),
    Mutant("owners_are_named", FAILOVER, OWNERS),
    Mutant("each_owner_has_its_own_name", LATE._replace(has_drain=True), OWNERS),
    Mutant("ids_must_grow", PLAIN, STREAM),
    Mutant("a_gap_is_refused", TWO_TOKENS._replace(failovers=1), STREAM),
    Mutant("submit_looks_for_the_key", PLAIN, "what was published is not taken back"),
    Mutant("a_claim_is_one_call", PLAIN, WAITS),
    Mutant("a_claim_removes_the_entry", PLAIN, WAITS),
    Mutant("a_requeue_clears_the_token", PLAIN, ZOMBIE),
    Mutant("a_requeue_enters_the_queue", PLAIN, WAITS),
    Mutant("a_requeue_looks_for_a_cancel", CANCELLED, "a cancelled job does not wait again"),
    Mutant("a_reap_looks_at_the_lease", PLAIN, "not taken back before its lease has passed"),
    Mutant("a_reap_counts", PLAIN, "taken back a bounded number of times"),
    Mutant("a_reap_gives_up", PLAIN, "taken back a bounded number of times"),
    Mutant("a_finish_brings_its_last_tokens", PLAIN, "the answer that is kept is what was streamed"),
    Mutant("a_finish_clears_the_token", LATE, "a job that ended does not change"),
    Mutant("a_cancel_ends_a_waiting_job", CANCELLED, "a cancelled job does not wait again"),
    Mutant("an_owner_continues_after_the_last_token", TWO_TOKENS, STREAM, without=("a_gap_is_refused",)),
    Mutant("a_reader_reads_behind_its_cursor", READ, "a reader sees each token once"),
    Mutant(
        "a_reader_ahead_is_told_the_end",
        FAILOVER._replace(has_cancel=True, workers=1),
        "can still come to its end",
    ),
)
