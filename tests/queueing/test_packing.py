"""Commands packed in C are the bytes that redis-py would send."""

from __future__ import annotations

import pytest
from redis.asyncio.connection import Connection

from headway.queueing.packing import packing_in_c


@pytest.mark.parametrize(
    "words",
    [
        ("PING",),
        (
            "FCALL",
            "headway_emit",
            1,
            "{tiny:0}",
            "key",
            "token",
            "5-0",
            "0",
            " wörd \U0001f680",
            "1,2",
            "",
            "",
        ),
        ("SET", b"\x00\xff\r\n", -7, 0.25, 1e300, 10**15),
        ("CLIENT SETNAME", "headway"),
        ("XADD", "o", "1-0", "t", "x" * 100_000, "k", ""),
    ],
)
def test_both_pack_alike(words: tuple[str | bytes | int | float, ...]) -> None:
    pytest.importorskip("hiredis", reason="the bare client packs in Python")
    in_c = packing_in_c(Connection)
    assert in_c is not Connection
    assert b"".join(in_c().pack_command(*words)) == b"".join(Connection().pack_command(*words))


def test_half_a_surrogate_pair_is_refused_by_both() -> None:
    for kind in (packing_in_c(Connection), Connection):
        with pytest.raises(UnicodeEncodeError):
            kind().pack_command("SET", "k", "\ud800")
