"""Every Redis key that Headway uses: name, type, owner, lifetime. Written once, here.

``{lane}`` is the hash tag of one model's shard, such as ``{smollm2-135m:0}``; all keys of a lane live in one
Cluster slot, and each function of the library gets the tag as its only key. ``<key>`` is the last part of
a job id. A user who may run ``FCALL`` needs the ACL patterns ``~*{<lane>}*`` (or ``~*``), ``&hint:*``
and, to list workers, ``~*{fleet}*``.

=========================== ========== ===================================================== ================
key                         type       what, written by                                      lifetime
=========================== ========== ===================================================== ================
q:{lane}:<band>:<tenant>    zset       jobs of a tenant that wait -> deadline, or acceptance until claimed
                                       plus patience (server ms): earliest first; submit
turn:{lane}:<band>          zset       tenants with waiting jobs -> virtual time; the        while jobs wait
                                       smallest is served next; submit, claim, settling
tenant:{lane}:<tenant>      hash       v:<band>: virtual time while nothing waits there;     1 h after its
                                       tokens:<band>: estimated tokens waiting; answer:      last change of
                                       how long its answers usually get                      turn
seen:{lane}                 zset       tenant -> when it last began or ceased to wait        the same 1 h
weights:{lane}              hash       tenant -> weight, where it is not 1                   for good
lane:{lane}                 hash       the books: jobs, tokens, returned:<band> waiting,     for good
                                       floor:<band> of the virtual times, since_aged,
                                       answered and estimated tokens, running; waited: 1 when
                                       jobs waited at the last report of a rate, pressed: when
                                       (ms) they did at two in a row; lost: 1 when
                                       jobs may be in no index, or until when one searches
back:{lane}:<band>          list       keys of jobs handed back or taken from a dead worker; until claimed
                                       served before the band's tenants
wake:{lane}                 stream     rings when a class and all better ones fill           newest 8
rates:{lane}                hash       worker -> tokens per second, until (ms), pressed      its heartbeat's
rate:{lane}                 string     tokens per second of all workers; their heartbeats    a heartbeat's
lease:{lane}                zset       running job -> end of its lease (server ms)           until it ends
due:{lane}                  zset       waiting job -> its deadline (server ms)               until claimed
dlq:{lane}                  stream     jobs given up: job, tenant, reason, attempts, tokens  newest 1000
recent:{lane}               stream     jobs that ended: job, tenant, band, reason, tokens    newest ~1000
used:{lane}:<day>           hash       what tenants used on a day (since 1970, UTC): jobs:,  93 days after a
                                       prompt:, completion:<tenant>; at each end             tenant's first
settle:{lane}               stream     ends of jobs with a reservation: job, tenant,         until the quotas
                                       reserved, prompt and completion tokens, reason        took it in
j:{lane}:<key>              hash       the record: state, claim token, epoch, …              (1)
p:{lane}:<key>              string     the body as posted                                    (1) (3)
r:{lane}:<key>              string     the answer as JSON, from the end on                   (1)
o:{lane}:<key>              stream     the token stream; emit and finish                     (2)
idem:{lane}:<tenant>:<text> string     idempotency key -> job key and body fingerprint       24 h
c:{lane}:<worker>           string     the worker's last claim, to answer a repeat alike     one lease
ctl:{lane}:<worker>         stream     running jobs of this worker that were cancelled       1 h, newest 1000
hint:{lane}                 channel    keys of jobs with new entries; only a hint            –
w:{fleet}:<worker>          string     the worker's card as JSON                             its heartbeat's
workers:{fleet}             zset       worker -> when its card lapses                        as its card
models:{fleet}              set        every model ever served here                          for good
watched:{fleet}             string     somebody watches the steps (/console)                 a few seconds
steps:{fleet}:<worker>      stream     a worker's last steps, while they are watched         30 s, newest 40
tenants:{sys}               hash       tenant -> its limits as JSON                          until removed
keys:{sys}                  hash       SHA-256 of an API key -> tenant, name, created_ms,    until revoked
                                       admin
config:{sys}                hash       tenants, keys: versions, new with each change; file,  for good
                                       named: digest and tenants of the tenants.toml applied
reserving:{sys}             zset       tenant that may have reservations -> said so (ms)     8 days
keeper:{sys}                string     somebody looks after reservations now                 a few seconds
rl:{t:<tenant>}             string     the account: buckets of requests and tokens, budget   8 days
inf:{t:<tenant>}            zset       reserved job in flight -> end of its lease (ms)       8 days
wait:{t:<tenant>}           zset       those of them that wait -> reserved when (ms)         8 days
res:{t:<tenant>}            hash       job -> tokens, prompt, state, since, nonce, filled    8 days
gone:{t:<tenant>}           zset       job whose reservation lapsed -> when (ms)             24 h
file:{batch}:<id>           string     a stored file: tenant, name, purpose, size, path      until it expires
files:{batch}:<tenant>      zset       file -> created (ms)                                  as its files
expiring:{batch}            zset       file -> when it expires (ms)                          as its files
batch:{batch}:<id>          hash       what is known of a batch, each field written once:    30 days after
                                       created, checked, cancelling, finalizing, outcome,    its end
                                       told; progress, which is written again and again
parts:{batch}:<id>          hash       part of a batch -> its counts and result files        until its end
batches:{batch}:<tenant>    zset       batch -> created (ms)                                 as its batches
batches:{batch}             zset       every batch -> created (ms)                           as its batches
open:{batch}                zset       batch that is to be worked on -> waits since (ms)     until its end
served:{batch}              hash       tenant -> when a turn at its batches last began (ms)  as its open ones
once:{batch}:<tenant>:<key> string     idempotency key -> file or batch, digest of request   24 h
turn:{batch}:<what>         string     who does something now, so that others do not         under a minute
hooks:{batch}:<tenant>      hash       webhook -> URL, secret, events                        until removed
awaited:{batch}             zset       job whose end is to be told -> looked at next (ms)    until told
due:{batch}                 zset       webhook message that is to be sent -> when (ms)       3 days at most
place:{batch}               string     the name of this queue in the place of its files      for good
message:{batch}:<id>        string     such a message: where to, what, how often tried       3 days at most
=========================== ========== ===================================================== ================

(1) Without a deadline: kept until the job ends, however long that takes, then 1 h. With one: at most 1 h
past the deadline, so that nothing is left when every process died. (2) Likewise, but 5 minutes after the
end. (3) 7 days after the end for a job in the dead letters, so that it can be redriven.

What holds after each call, band by band: ``jobs`` is the number of members of all ``q:``, ``turn`` has just
the tenants whose ``q:`` is not empty, ``tokens`` is what these jobs were estimated at, in the books of the
lane and of the tenants, and ``returned`` is the length of ``back``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from headway.queueing.ids import JobId
from headway.queueing.messages import Priority

HINT_PATTERN: Final = "hint:*"
FLEET: Final = "{fleet}"
WORKERS: Final = "workers:{fleet}"
MODELS: Final = "models:{fleet}"
WATCHED: Final = "watched:{fleet}"
SYSTEM: Final = "{sys}"
TENANTS: Final = "tenants:{sys}"
API_KEYS: Final = "keys:{sys}"
CONFIG: Final = "config:{sys}"
RESERVING: Final = "reserving:{sys}"
KEEPER: Final = "keeper:{sys}"


def tenant_tag(tenant: str) -> str:
    """The hash tag of a tenant's own keys."""
    return f"{{t:{tenant}}}"


def card_key(worker_id: str) -> str:
    """The key of a worker's card."""
    return f"w:{FLEET}:{worker_id}"


def steps_key(worker_id: str) -> str:
    """The stream of what a worker shows of its steps."""
    return f"steps:{FLEET}:{worker_id}"


@dataclass(frozen=True, slots=True)
class LaneKeys:
    """The keys of one lane."""

    lane: str

    @property
    def tag(self) -> str:
        """The hash tag: ``KEYS[1]`` of every function."""
        return f"{{{self.lane}}}"

    def waiting(self, band: Priority, tenant: str) -> str:
        """Sorted set of a tenant's waiting jobs."""
        return f"q:{self.tag}:{band}:{tenant}"

    def turn(self, band: Priority) -> str:
        """Sorted set of the tenants with waiting jobs."""
        return f"turn:{self.tag}:{band}"

    def tenant(self, tenant: str) -> str:
        """Hash: a tenant's books."""
        return f"tenant:{self.tag}:{tenant}"

    @property
    def weights(self) -> str:
        """Hash of the tenants' weights."""
        return f"weights:{self.tag}"

    @property
    def books(self) -> str:
        """Hash: what waits in the lane."""
        return f"lane:{self.tag}"

    @property
    def rate(self) -> str:
        """String: tokens per second of all workers."""
        return f"rate:{self.tag}"

    def returned(self, band: Priority) -> str:
        """List of jobs that came back."""
        return f"back:{self.tag}:{band}"

    @property
    def wake(self) -> str:
        """Stream that rings waiting workers."""
        return f"wake:{self.tag}"

    @property
    def lease(self) -> str:
        """Sorted set of running jobs."""
        return f"lease:{self.tag}"

    @property
    def dead_letters(self) -> str:
        """Stream of jobs given up."""
        return f"dlq:{self.tag}"

    @property
    def recent(self) -> str:
        """Stream of jobs that ended."""
        return f"recent:{self.tag}"

    def used(self, day: int) -> str:
        """Hash: what the tenants used on a day, counted from 1970."""
        return f"used:{self.tag}:{day}"

    @property
    def settlements(self) -> str:
        """Stream of ends that the quotas have yet to take in."""
        return f"settle:{self.tag}"

    def control(self, worker_id: str) -> str:
        """Stream of cancels for one worker."""
        return f"ctl:{self.tag}:{worker_id}"


@dataclass(frozen=True, slots=True)
class JobKeys:
    """The keys of one job."""

    id: JobId

    def _key(self, kind: str) -> str:
        return f"{kind}:{{{self.id.lane}}}:{self.id.key}"

    @property
    def record(self) -> str:
        """Hash."""
        return self._key("j")

    @property
    def body(self) -> str:
        """String: the job as posted."""
        return self._key("p")

    @property
    def result(self) -> str:
        """String: the answer."""
        return self._key("r")

    @property
    def stream(self) -> str:
        """The token stream."""
        return self._key("o")


# -- files and batches ---------------------------------------------------------------------------------------

BATCH: Final = "{batch}"
"""One slot for all of them: they are few, and their records are small."""
FILES_EXPIRING: Final = f"expiring:{BATCH}"
BATCHES: Final = f"batches:{BATCH}"
BATCHES_OPEN: Final = f"open:{BATCH}"
TENANTS_SERVED: Final = f"served:{BATCH}"
MESSAGES_DUE: Final = f"due:{BATCH}"
ENDS_AWAITED: Final = f"awaited:{BATCH}"
PLACE: Final = f"place:{BATCH}"


class FileKeys:
    """The keys of stored files."""

    @staticmethod
    def record(file_id: str) -> str:
        """String: the record."""
        return f"file:{BATCH}:{file_id}"

    @staticmethod
    def of_tenant(tenant: str) -> str:
        """Sorted set of a tenant's files."""
        return f"files:{BATCH}:{tenant}"


@dataclass(frozen=True, slots=True)
class BatchKeys:
    """The keys of one batch."""

    batch_id: str

    @property
    def record(self) -> str:
        """Hash."""
        return f"batch:{BATCH}:{self.batch_id}"

    @property
    def parts(self) -> str:
        """Hash of the committed parts."""
        return f"parts:{BATCH}:{self.batch_id}"

    @staticmethod
    def of_tenant(tenant: str) -> str:
        """Sorted set of a tenant's batches."""
        return f"batches:{BATCH}:{tenant}"

    @staticmethod
    def turn(what: str) -> str:
        """String: who does something now."""
        return f"turn:{BATCH}:{what}"


class WebhookKeys:
    """The keys of webhooks and of the messages to them."""

    @staticmethod
    def of_tenant(tenant: str) -> str:
        """Hash of a tenant's webhooks."""
        return f"hooks:{BATCH}:{tenant}"

    @staticmethod
    def message(message_id: str) -> str:
        """String: a message on its way."""
        return f"message:{BATCH}:{message_id}"
