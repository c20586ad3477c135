"""The checklist's lines about who may use the queue, and who works for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headway.queueing.access import possible_roles
from headway.services.doctor_facts import Facts, Fleet
from headway.services.doctor_report import Check, Finding, fail, ok, warn
from headway.services.worker_card import fell_back

HUNG_SECONDS: Final = 60.0
_LOOPBACK: Final = frozenset(("localhost", "127.0.0.1", "::1"))


def _access(facts: Facts) -> Finding:
    if facts.denied is None:
        return warn("this user may not ask (MULTI): not checked")
    roles = [role.name for role in possible_roles(facts.denied)]
    if roles:
        return ok(f"enough for a {' and a '.join(roles)}")
    named = [f"{denied.command} on {denied.key}" for denied in facts.denied]
    more = f" and {len(named) - 5} more" if len(named) > 5 else ""
    return fail("refused: " + ", ".join(named[:5]) + more)


def _encryption(facts: Facts) -> Finding:
    address = facts.address
    if address.path:
        return ok("a socket on this machine")
    if address.tls is not None:
        return ok("TLS") if address.tls.checks_certificate else warn("TLS that trusts any certificate")
    if all(host in _LOOPBACK for host, _ in address.places):
        return ok("none; it stays on this machine")
    return warn("none")


def _login(facts: Facts) -> Finding:
    address = facts.address
    if address.username or address.password:
        return ok(address.username or "the default user's password")
    if address.path:
        return ok("none; the socket's rights decide")
    if all(host in _LOOPBACK for host, _ in address.places):
        return ok("none; it stays on this machine")
    return warn("none")


def _of_fleet(examine: Callable[[Fleet], Finding]) -> Callable[[Facts], Finding]:
    """Over the fleet, where the queue could tell about it."""

    def look(facts: Facts) -> Finding:
        return examine(facts.fleet) if isinstance(facts.fleet, Fleet) else fail(f"not known: {facts.fleet}")

    return look


def _api_keys(fleet: Fleet) -> Finding:
    return ok(f"{fleet.api_keys}") if fleet.api_keys else warn("none: open mode")


def _workers(fleet: Fleet) -> Finding:
    if not fleet.workers:
        return warn("none is alive")
    hung = [card.worker_id for card in fleet.workers if card.step_age_seconds > HUNG_SECONDS]
    if hung:
        return fail("hung: " + ", ".join(hung))
    slow = [
        f"{card.worker_id} by {card.computation}" for card in fleet.workers if fell_back(card.computation)
    ]
    if slow:
        return warn("several times slower than they could be: " + "; ".join(slow))
    ready = sum(card.state == "ready" for card in fleet.workers)
    return ok(f"{ready} of {len(fleet.workers)} ready")


def _lanes(fleet: Fleet) -> Finding:
    served = {card.model for card in fleet.workers if card.state != "draining"}
    waiting = {model: sum(depth.queued.values()) for model, depth in fleet.lanes.items()}
    orphans = [f"{model} ({jobs} waiting)" for model, jobs in waiting.items() if jobs and model not in served]
    if orphans:
        return fail("no worker for " + ", ".join(orphans))
    return ok(f"{len(fleet.lanes)}, {sum(waiting.values())} jobs waiting")


def _dead_letters(fleet: Fleet) -> Finding:
    dead = {model: depth.dead_letters for model, depth in fleet.lanes.items() if depth.dead_letters}
    return warn(", ".join(f"{model}: {count}" for model, count in dead.items())) if dead else ok("none")


FLEET_CHECKS: Final = (
    Check(
        "access",
        "A user without one of these rights fails in the middle of serving.",
        "Grant what docs/wire-protocol.md lists for the role.",
        _access,
    ),
    Check(
        "encryption",
        "Prompts, answers and passwords cross the network readable.",
        "rediss://… with the server's tls-port and certificates.",
        _encryption,
    ),
    Check(
        "login",
        "Whoever reaches the port may read every prompt and post as any tenant.",
        "Give gateways, workers and producers users of their own, and the default user a password.",
        _login,
    ),
    Check(
        "api-keys",
        "In open mode whoever reaches a gateway may post as any tenant.",
        "headway keys create TENANT",
        _of_fleet(_api_keys),
    ),
    Check(
        "workers",
        "Without one, jobs wait for ever; a hung one holds its jobs; one without the native kernels is slow.",
        "headway worker --redis-url …; a hung one ends itself after --hung-after-seconds, else kill -9 it; "
        "for a slow one see docs/cpu.md.",
        _of_fleet(_workers),
    ),
    Check(
        "lanes",
        "Jobs of a model that nobody serves wait for ever.",
        "Start a worker for the model, or end the jobs: headway cancel JOB.",
        _of_fleet(_lanes),
    ),
    Check(
        "dead-letters",
        "These jobs were given up: malformed, or their workers were lost with them.",
        "headway dlq list says why; redrive or purge them.",
        _of_fleet(_dead_letters),
    ),
)
