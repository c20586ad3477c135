"""Every function of the library, called by somebody who leaves arguments out or fills them with nonsense.

It answers, or names what is wrong and has written nothing; never in the words of the language behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import pytest
import redis
from tests.queueing.conftest import TAG

from headway.queueing.functions import LIBRARY

if TYPE_CHECKING:
    from tests.queueing.conftest import OpenQueue

ACME, SYS = "{t:acme}", "{sys}"
BODY = '{"model":"tiny","prompt":"x","deadline_seconds":60}'
NONSENSE: Final = ("", "nan", "inf", "-1", "1e300", "x", "a b", "-")

GOOD: Final[dict[str, tuple[str, list[str]]]] = {
    "headway_submit": (TAG, ["new", BODY, "9", "9", "9", "9", "9", "9", "", ""]),
    "headway_cancel": (TAG, ["k", "why", "9", "9"]),
    "headway_reap": (TAG, ["3", "9", "9", "search"]),
    "headway_expire_worker": (TAG, ["w", "3", "9", "9"]),
    "headway_mend": (TAG, ["w"]),
    "headway_weights": (TAG, ["a", "2", "b", "3"]),
    "headway_report": (TAG, ["w", "10", "9999"]),
    "headway_heartbeat": ("{fleet}", ["w", "{}", "9999", "tiny"]),
    "headway_restore": (TAG, ["1", "9", "9", "k"]),
    "headway_claim": (TAG, ["w2", "9", "t", "9000", "9", "9", "9", "9", "batch"]),
    "headway_emit": (TAG, ["k", "TOKEN", "0", "1-0", "0", "a", "1", "", ""]),
    "headway_finish": (
        TAG,
        [
            *("k", "TOKEN", "9", "9", "stop", "{}", "{}", "", "", "1", "1", "0", "0", "0"),
            *("1-0", "0", "a", "1", "", ""),
        ],
    ),
    "headway_renew": (TAG, ["9000", "k", "TOKEN"]),
    "headway_release": (TAG, ["9", "9", "k", "TOKEN"]),
    "headway_retry": (TAG, ["ended", "new"]),
    "headway_redrive": (TAG, ["1-1", "new"]),
    "headway_forget": (TAG, ["ended"]),
    "headway_purge": (TAG, ["1-1"]),
    "headway_reserve": (ACME, ["tiny:0:k", "n", "30000", "10", "5", "1", "1", "1", "1", "1", "1"]),
    "headway_unreserve": (ACME, ["tiny:0:held", "n1"]),
    "headway_settle": (ACME, ["tiny:0:held", "n1", "1", "1"]),
    "headway_keep": (ACME, ["30000", "tiny:0:held", "n1", "q"]),
    "headway_reservations": (ACME, ["1000", "10", "0"]),
    "headway_account": (ACME, ["1", "1"]),
    "headway_tenant_set": (SYS, ["acme", '{"rpm":1}']),
    "headway_tenant_rm": (SYS, ["acme"]),
    "headway_tenants_apply": (SYS, ["digest", "acme", '{"rpm":1}']),
    "headway_key_put": (SYS, ["a" * 64, '{"tenant":"acme","name":"x","created_ms":1}']),
    "headway_key_rm": (SYS, ["a" * 64]),
    "headway_reserving": (SYS, ["acme"]),
    "headway_quiet": (SYS, ["acme", "other"]),
    "headway_probe": (TAG, []),
}


def some_life(raw: redis.Redis) -> str:
    """A running job, an ended one, weights, a reservation, limits; the running job's claim token."""
    raw.flushall()
    raw.fcall("headway_submit", 1, TAG, "k", BODY)
    raw.fcall("headway_submit", 1, TAG, "ended", '{"model":"tiny","prompt":"x"}')
    raw.fcall("headway_cancel", 1, TAG, "ended", "why")
    claimed = raw.fcall("headway_claim", 1, TAG, "w", "9", "t", *["60000"] * 5)
    raw.fcall("headway_weights", 1, TAG, "z", "4")
    raw.fcall("headway_reserve", 1, ACME, "tiny:0:held", "n1", "300000", "10", "5", "9", "900", *[""] * 4)
    raw.fcall("headway_tenant_set", 1, SYS, "acme", '{"rpm":2}')
    return cast("bytes", claimed[1][1]).decode()


def snapshot(raw: redis.Redis) -> dict[bytes, object]:
    return {key: raw.dump(key) for key in cast("list[bytes]", raw.keys("*"))}


def refusal(raw: redis.Redis, function: str, *arguments: str) -> str | None:
    try:
        raw.fcall(function, 1, *arguments)
    except redis.ResponseError as error:
        return str(error)
    return None


def wrong_calls(good: list[str]) -> list[list[str]]:
    shorter = [good[:count] for count in range(len(good))]
    spoilt = [[*good[:at], value, *good[at + 1 :]] for at in range(len(good)) for value in NONSENSE]
    return [*shorter, *spoilt, [*good, "more"]]


@pytest.mark.parametrize("function", GOOD)
async def test_a_wrong_call_is_answered_or_named_and_then_nothing_was_written(
    redis_url: str, open_queue: OpenQueue, function: str
) -> None:
    await open_queue(redis_url).check_server()
    tag, good = GOOD[function]
    with redis.Redis.from_url(redis_url, protocol=2) as raw:
        for call in wrong_calls(good):
            token = some_life(raw)
            before = snapshot(raw)
            problem = refusal(raw, function, tag, *[token if part == "TOKEN" else part for part in call])
            assert problem is None or problem.startswith("HEADWAYINVALID "), call
            assert problem is None or snapshot(raw) == before, call
        for keys in ((), (tag, tag), ("",), ("tiny:0",), ("{}",), ("{a}{b}",)):
            with pytest.raises(redis.ResponseError, match=r"^HEADWAYINVALID KEYS: "):
                raw.fcall(function, len(keys), *keys, *good)


async def test_no_function_is_left_out_here(redis_url: str, open_queue: OpenQueue) -> None:
    await open_queue(redis_url).check_server()
    with redis.Redis.from_url(redis_url, protocol=2) as raw:
        (library,) = raw.function_list(library=LIBRARY)
        fields = dict(zip(library[::2], library[1::2], strict=True))
        names = {dict(zip(each[::2], each[1::2], strict=True))[b"name"] for each in fields[b"functions"]}
    assert names == {name.encode() for name in GOOD}
