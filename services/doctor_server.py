"""The checklist's lines about the queue's server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headway.queueing.errors import QueueingError
from headway.queueing.functions import VERSION
from headway.queueing.server_check import check_version
from headway.services.doctor_facts import Facts, ServerFacts
from headway.services.doctor_report import Check, Finding, fail, ok, warn, worst

CLAIM_BYTES: Final = 16 << 20
"""The largest reply we ask for is 8 MiB of jobs and the last of them whole; twice that is room enough."""
SMALL_NODES: Final = 1024
OFFSET_SECONDS: Final = 1.0
SLOW_SECONDS: Final = 0.005
"""Each iteration of a worker waits for nothing, but each token comes that much later."""
TOO_SLOW_SECONDS: Final = 0.25
FULL: Final = 0.8
NEARLY_FULL: Final = 0.9

_UNKNOWN: Final = warn("this user may not ask: run doctor as an administrator")


def _each(examine: Callable[[ServerFacts], Finding]) -> Callable[[Facts], Finding]:
    """The worst over all primaries, named where there are several."""

    def over_all(facts: Facts) -> Finding:
        return worst([_named(examine(server), server, facts) for server in facts.servers])

    return over_all


def _named(finding: Finding, server: ServerFacts, facts: Facts) -> Finding:
    if len(facts.servers) == 1:
        return finding
    return Finding(finding.verdict, f"{server.place}: {finding.found}")


def _version(server: ServerFacts) -> Finding:
    if not server.info:
        return _UNKNOWN
    product = "Valkey" if "valkey_version" in server.info else "Redis"
    version = server.info.get("valkey_version") or server.info.get("redis_version", "?")
    try:
        check_version(server.info)
    except QueueingError as error:
        return fail(str(error))
    return ok(f"{product} {version}")


def _role(server: ServerFacts) -> Finding:
    if not server.info:
        return _UNKNOWN
    return ok("primary") if server.info.get("role") == "master" else fail("a read-only replica")


def _policy(server: ServerFacts) -> Finding:
    policy = server.info.get("maxmemory_policy") or server.config.get("maxmemory-policy")
    if policy is None:
        return _UNKNOWN
    if policy != "noeviction":
        return fail(policy)
    evicted = server.number("evicted_keys")
    return warn(f"noeviction now, yet {evicted} keys were evicted before") if evicted else ok(policy)


def _memory(server: ServerFacts) -> Finding:
    if not server.info:
        return _UNKNOWN
    limit, used = server.number("maxmemory"), server.number("used_memory")
    total = server.number("total_system_memory")
    if not limit:
        return warn(f"not set; {_mib(used)} used")
    share = f"{used / (1 << 20):.1f} of {limit / (1 << 20):.1f} MiB used"
    if used >= limit:
        return fail(f"{share}: no new job is accepted")
    if used > NEARLY_FULL * limit:
        return fail(f"{share}: soon no new job is accepted")
    if total and limit > 0.75 * total:
        return warn(f"{share}, which is more than three quarters of the machine's {_mib(total)}")
    return warn(share) if used > FULL * limit else ok(share)


def _durability(server: ServerFacts) -> Finding:
    if not server.info:
        return _UNKNOWN
    if server.info.get("aof_enabled") != "1":
        return fail("appendonly no")
    fsync = server.config.get("appendfsync")
    if fsync == "no":
        return warn("appendonly yes, but appendfsync no: the kernel decides when")
    return ok(f"appendonly yes, appendfsync {fsync or '(not told)'}")


def _last_writes(server: ServerFacts) -> Finding:
    if not server.info:
        return _UNKNOWN
    names = ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")
    broken = [name for name in names if server.info.get(name, "ok") != "ok"]
    return fail(", ".join(f"{name} {server.info[name]}" for name in broken)) if broken else ok("no error")


def _disk(server: ServerFacts) -> Finding:
    if server.disk is None:
        return ok("not on this machine, or not told: not checked")
    free, used = server.disk.free_bytes, server.number("used_memory")
    share = f"{_mib(free)} free of {_mib(server.disk.total_bytes)}"
    # A rewrite of the append-only file writes the whole data set beside the old one.
    if free < 2 * used or free < 64 << 20:
        return fail(f"{share}, data {_mib(used)}")
    return warn(share) if free < 0.1 * server.disk.total_bytes else ok(share)


def _replicas(server: ServerFacts) -> Finding:
    if not server.info:
        return _UNKNOWN
    replicas = server.number("connected_slaves")
    needed = server.config.get("min-replicas-to-write")
    if not replicas:
        return warn("no replica")
    if needed is None:
        return warn(f"{replicas}; whether writes wait for one is not told")
    if int(needed) < 1:
        return warn(f"{replicas}, but min-replicas-to-write 0: a primary cut off from them goes on alone")
    return ok(f"{replicas}, min-replicas-to-write {needed}")


def _functions(server: ServerFacts) -> Finding:
    if server.library is None:
        return fail("not loaded")
    if server.library < VERSION:
        return fail(f"version {server.library}, ours is {VERSION}")
    if server.library > VERSION:
        return warn(f"version {server.library}, newer than ours ({VERSION})")
    return ok(f"version {server.library}")


def _clock(server: ServerFacts) -> Finding:
    said = f"{round(server.offset_seconds, 3) + 0.0:+.3f} s"  # never -0.000
    return ok(said) if abs(server.offset_seconds) <= OFFSET_SECONDS else warn(said)


def _latency(server: ServerFacts) -> Finding:
    seconds = server.round_trip_seconds
    said = f"{seconds * 1000:.2f} ms"
    if seconds > TOO_SLOW_SECONDS:
        return fail(said)
    return warn(said) if seconds > SLOW_SECONDS else ok(said)


def _output_limits(server: ServerFacts) -> Finding:
    text = server.config.get("client-output-buffer-limit")
    if text is None:
        return _UNKNOWN
    words = text.split()
    hard = {words[at]: int(words[at + 1]) for at in range(0, len(words), 4)}
    if 0 < hard.get("normal", 0) < CLAIM_BYTES:
        return fail(f"normal {_mib(hard['normal'])}: a worker's largest claim is cut off")
    if 0 < hard.get("pubsub", 0) < 1 << 20:
        return warn(f"pubsub {hard['pubsub']} bytes: hints are cut off, and readers poll")
    return ok(text)


def _stream_nodes(server: ServerFacts) -> Finding:
    text = server.config.get("stream-node-max-bytes")
    if text is None:
        return _UNKNOWN
    return ok(text) if 0 < int(text) <= SMALL_NODES else warn(text)


def _slots(facts: Facts) -> Finding:
    if facts.uncovered_slots is None:
        return ok("no Cluster")
    if facts.uncovered_slots:
        return fail(f"{facts.uncovered_slots} of 16384 slots have no primary")
    if moving := sum(server.moving_slots for server in facts.servers):
        return warn(f"{moving} of 16384 on their way to another primary; their lanes take no call until then")
    return ok(f"all, on {len(facts.servers)} primaries")


def _mib(count: int) -> str:
    return f"{count >> 20} MiB" if count >= 1 << 20 else f"{count} bytes"


SERVER_CHECKS: Final = (
    Check(
        "version",
        "Redis 7.0 and Valkey 7.2 are the first with function libraries.",
        "Upgrade the server.",
        _each(_version),
    ),
    Check(
        "role",
        "A replica takes no writes.",
        "Connect to its primary; behind Sentinels or in a Cluster use redis+sentinel:// or redis+cluster://.",
        _each(_role),
    ),
    Check(
        "slots",
        "A lane whose slot nobody serves, or one that is moved, accepts nothing and answers nothing.",
        "redis-cli --cluster check HOST:PORT, then --cluster fix.",
        _slots,
    ),
    Check(
        "maxmemory-policy",
        "Any other policy drops accepted jobs when memory runs short.",
        "CONFIG SET maxmemory-policy noeviction, and the same in the server's configuration.",
        _each(_policy),
    ),
    Check(
        "maxmemory",
        "At the limit new jobs get 503 while accepted ones are finished; without one the system kills it.",
        "Set maxmemory to at most three quarters of the machine's memory; get more before it is used up.",
        _each(_memory),
    ),
    Check(
        "appendonly",
        "Without it, jobs accepted since the last snapshot are lost when the server restarts.",
        "CONFIG SET appendonly yes and appendfsync everysec, and the same in the server's configuration.",
        _each(_durability),
    ),
    Check(
        "last-writes",
        "A server that cannot write its files refuses jobs, or will lose them.",
        "Look into the server's log: a full disk, missing rights, or too little memory to fork.",
        _each(_last_writes),
    ),
    Check(
        "disk",
        "The append-only file is rewritten beside the old one; on a full disk the server refuses writes.",
        "Keep free at least twice the data set and a tenth of the disk.",
        _each(_disk),
    ),
    Check(
        "replicas",
        "One machine alone can be lost with all jobs, and a primary cut off from its replicas accepts what a "
        "failover forgets.",
        "Give each primary a replica, set min-replicas-to-write 1 and min-replicas-max-lag 10.",
        _each(_replicas),
    ),
    Check(
        "functions",
        "Every call of producers and workers is a function of this library.",
        "Start a gateway or worker of this version, or load it by hand (docs/wire-protocol.md).",
        _each(_functions),
    ),
    Check(
        "clock",
        "Leases and deadlines go by the server's clock alone; times in logs and job ids by this host's.",
        "Run NTP (chrony or systemd-timesyncd) on both.",
        _each(_clock),
    ),
    Check(
        "latency",
        "Each token reaches the queue one round trip after it was made.",
        "Put the server near the workers: the same zone, no swap, no fork of a huge data set (THP off).",
        _each(_latency),
    ),
    Check(
        "output-limits",
        "The server cuts off clients whose replies grow beyond its limit.",
        "client-output-buffer-limit normal 0 0 0 and pubsub 32mb 8mb 60, the defaults.",
        _each(_output_limits),
    ),
    Check(
        "stream-node-max-bytes",
        "Each kept answer takes a whole node: 4.4 kB by default, 1.3 kB with small ones.",
        "CONFIG SET stream-node-max-bytes 1024, and the same in the server's configuration.",
        _each(_stream_nodes),
    ),
)
