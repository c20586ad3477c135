"""Counts again, from the jobs themselves, what a lane's books on a server say."""

from __future__ import annotations

from collections import Counter
from typing import Any

from headway.queueing.keys import LaneKeys
from headway.queueing.messages import Priority


def check_books(raw: Any, lane: str, times_before: dict[str, float]) -> dict[str, float]:
    """Assert what the end of the table in queueing/keys.py says; the bands' floors, which only grow.

    ``raw``: a client of the server with RESP2 and bytes; its replies have no types worth having.
    """
    keys = LaneKeys(lane)
    books = _texts(raw.hgetall(keys.books))
    queues = {name.decode(): raw.zrange(name, 0, -1) for name in raw.keys(f"q:{keys.tag}:*")}
    costs = {key: int(raw.hget(f"j:{keys.tag}:{key.decode()}", "cost")) for q in queues.values() for key in q}
    floors: dict[str, float] = {}
    for band in Priority:
        mine = {name.split(":")[-1]: jobs for name, jobs in queues.items() if name.split(":")[-2] == band}
        turns = {name.decode(): at for name, at in raw.zrange(keys.turn(band), 0, -1, withscores=True)}
        assert turns.keys() == mine.keys(), "turn holds exactly the tenants with waiting jobs"
        tokens = Counter({name: sum(costs[key] for key in jobs) for name, jobs in mine.items()})
        for name, count in tokens.items():
            assert int(raw.hget(keys.tenant(name), f"tokens:{band}") or 0) == count
        assert int(books.get(f"jobs:{band}", 0)) == sum(map(len, mine.values()))
        assert int(books.get(f"tokens:{band}", 0)) == tokens.total()
        returned = raw.lrange(keys.returned(band), 0, -1)
        assert int(books.get(f"returned:{band}", 0)) == len(returned)
        floors[band] = float(books.get(f"floor:{band}", 0))
        assert floors[band] >= times_before.get(band, 0.0), "the floor only grows"
    _check_states(raw, keys, [key for jobs in queues.values() for key in jobs])
    return floors


def _check_states(raw: Any, keys: LaneKeys, queued: list[bytes]) -> None:
    returned = [key for band in Priority for key in raw.lrange(keys.returned(band), 0, -1)]
    by_state: dict[str, list[str]] = {"queued": [], "running": [], "finished": []}
    for name in raw.keys(f"j:{keys.tag}:*"):
        by_state[raw.hget(name, "state").decode()].append(name.decode().rpartition(":")[2])
    assert sorted(by_state["queued"]) == sorted(key.decode() for key in (*queued, *returned)), (
        "each waits once"
    )
    leased = [key.decode() for key in raw.zrange(keys.lease, 0, -1)]
    assert sorted(by_state["running"]) == sorted(leased), "each running job has one lease"
    ended = Counter(entry[b"job"].decode() for _, entry in raw.xrange(keys.recent))
    assert ended == Counter(by_state["finished"]), "each end was told once"


def _texts(fields: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in fields.items()}
