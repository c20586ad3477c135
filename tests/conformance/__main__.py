"""``make conformance``: thousands of generated calls to a real ``headway up``; no 5xx, no broken contract.

    make conformance ARGS="--calls 2000 --seed 7"

Each round has a seed of its own, which is shown: the same seed generates the same calls.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from tests.conformance.generated import MODEL_TOKENS, Outcome, Round, Target, run_round
from tests.services.up.headway_up import running_up

CALLS = 20_000
TENANT = "conformance"


def main() -> int:
    """The exit code: 0, or 1 when something was found."""
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--calls", type=int, default=CALLS, help="at least so many")
    asked.add_argument("--seed", type=int, default=1, help="of the first round")
    asked.add_argument("--url", help="of a service that runs; default: one of its own")
    asked.add_argument("--operator", help="that service's HEADWAY_ADMIN_KEY")
    options = asked.parse_args()
    if options.url:
        return _run(options.url, options.operator, options.calls, options.seed)
    operator = secrets.token_urlsafe(24)
    own = {"HEADWAY_ADMIN_KEY": operator, "HEADWAY_BATCH": "true"}
    with tempfile.TemporaryDirectory() as folder, running_up(Path(folder), env=own) as up:
        return _run(up.url, operator, options.calls, options.seed)


def _run(url: str, operator: str, calls: int, seed: int) -> int:
    total, began = Outcome(), time.monotonic()
    for asked in _rounds(seed):
        # An answer without a limit of its own would fill the model's context.
        _ask(url, operator, "PUT", f"/admin/tenants/{TENANT}", {"max_tokens": MODEL_TOKENS})
        target = Target(url, "scripted", _new_key(url, operator), operator)
        with tempfile.TemporaryDirectory() as folder:
            found = run_round(target, asked, Path(folder))
        _undo(url, operator)
        total.add(found)
        group = "administrators' operations" if asked.is_admin else "all others"
        group = "calls to be accepted" if asked.is_accepted else group
        print(
            f"seed {asked.seed:4} {asked.phases:9} {group}: {found.calls} calls, {found.by_class()}, "
            f"{'found something' if found.reports else 'nothing found'}",
            flush=True,
        )
        if total.calls >= calls or total.reports:
            break
    print(*total.reports, sep="\n")
    print("answers by operation and status:")
    for name, count in sorted(total.statuses.items()):
        print(f"  {count:6}  {name}")
    print(f"{total.calls} calls in {time.monotonic() - began:.0f} s, {total.by_class()}")
    return 1 if total.reports else 0


def _rounds(seed: int) -> Iterator[Round]:
    """Coverage once (it draws nothing), then draws and chains of calls, for ever."""
    yield Round(seed, "coverage", 1)
    yield Round(seed, "coverage", 1, is_admin=True)
    while True:
        yield Round(seed, "fuzzing", 60, is_accepted=True)
        yield Round(seed, "fuzzing", 40)
        yield Round(seed, "stateful", 40)
        yield Round(seed, "fuzzing", 40, is_admin=True)
        yield Round(seed, "stateful", 40, is_admin=True)
        seed += 1


def _new_key(url: str, operator: str) -> str:
    key: str = _ask(url, operator, "POST", "/admin/keys", {"tenant": TENANT})["key"]
    return key


def _undo(url: str, operator: str) -> None:
    """Take away the limits and keys that generated calls made, so that the next round is not refused."""
    for tenant in _ask(url, operator, "GET", "/admin/tenants")["data"]:
        _ask(url, operator, "DELETE", f"/admin/tenants/{tenant['tenant']}")
    for key in _ask(url, operator, "GET", "/admin/keys")["data"]:
        _ask(url, operator, "DELETE", f"/admin/keys/{key['id']}?open=true")


def _ask(url: str, operator: str, method: str, path: str, body: object = None) -> Any:
    headers = {"Authorization": f"Bearer {operator}"}
    return httpx.request(method, url + path, json=body, headers=headers, timeout=10).raise_for_status().json()


if __name__ == "__main__":
    sys.exit(main())
