"""A URL says what the queue's server is, and a wrong one says how it is written."""

from __future__ import annotations

import pytest

from headway.queueing.address import Address, Tls, parse_address
from headway.queueing.errors import InvalidUrlError
from headway.services.settings import mask_password


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://localhost:6379/0", Address("one", (("localhost", 6379),))),
        ("redis://", Address("one", (("localhost", 6379),))),
        ("redis://:p%40ss@host/2", Address("one", (("host", 6379),), password="p@ss", db=2)),
        ("redis://me:p@[::1]:7000", Address("one", (("::1", 7000),), username="me", password="p")),
        ("redis://[::1]", Address("one", (("::1", 6379),))),
        (
            "redis://host?username=me&password=a%26b",
            Address("one", (("host", 6379),), username="me", password="a&b"),
        ),
        ("unix:///run/redis.sock?db=1", Address("one", path="/run/redis.sock", db=1)),
        ("unix://me:pw@/run/a%20b.sock", Address("one", path="/run/a b.sock", username="me", password="pw")),
        ("redis+cluster://a:1,b:2,c", Address("cluster", (("a", 1), ("b", 2), ("c", 6379)))),
        (
            "redis+sentinel://me:pw@a,b:2/queue/3?sentinel_password=s",
            Address(
                "sentinel",
                (("a", 26379), ("b", 2)),
                service="queue",
                db=3,
                username="me",
                password="pw",
                sentinel_password="s",
            ),
        ),
        (
            "rediss+cluster://a?ssl_ca_certs=/ca.crt&ssl_certfile=/c.crt&ssl_keyfile=/c.key&ssl_check_hostname=no",
            Address("cluster", (("a", 6379),), tls=Tls("/ca.crt", "/c.crt", "/c.key", checks_hostname=False)),
        ),
        ("redis://a?replicas=2", Address("one", (("a", 6379),), replicas=2)),
        ("rediss://a?ssl_cert_reqs=none", Address("one", (("a", 6379),), tls=Tls(checks_certificate=False))),
    ],
)
def test_each_way_to_say_it_is_understood(url: str, address: Address) -> None:
    assert parse_address(url) == address


@pytest.mark.parametrize(
    ("url", "what_to_do"),
    [
        ("http://host", r"redis\+cluster://"),
        ("host:6379", "redis://HOST"),
        ("redis+sentinels://a/b", r"redis\+sentinel://"),
        ("redis://a,b", r"redis\+cluster:// or redis\+sentinel://"),
        ("redis://a:port", "no port"),
        ("redis://a:70000", "no port"),
        ("redis://a:0", "no port"),
        ("redis://::1", "IPv6"),
        ("redis://[::1", "IPv6"),
        ("redis://a/x", "no database"),
        ("redis://a/0/1", "only a database"),
        ("redis+cluster://a/1", "database 0 only"),
        ("redis+cluster://a,a", "twice"),
        ("redis+cluster://a,,b", "no host"),
        ("redis+sentinel://a", "SERVICE"),
        ("redis+sentinel://a/s/0/1", "/SERVICE/0"),
        ("redis://a?ssl_ca_certs=/ca", "needs TLS"),
        ("redis://a?timeout=1", "username, password, db"),
        ("redis://a?db=1&db=2", "twice"),
        ("redis://a?replicas=some", "number of replicas"),
        ("redis://a?sentinel_password=x", "not known"),
        ("rediss://a?ssl_keyfile=/k", "ssl_certfile"),
        ("rediss://a?ssl_cert_reqs=optional", "required or none"),
        ("unix://run/redis.sock", "three slashes"),
        ("unix://", "three slashes"),
    ],
)
def test_a_wrong_one_says_what_to_write(url: str, what_to_do: str) -> None:
    with pytest.raises(InvalidUrlError, match=what_to_do):
        parse_address(url)


def test_no_password_is_shown_wherever_it_stands() -> None:
    for url in (
        "redis+cluster://me:secret@a,b",
        "redis+sentinel://:secret@a/q?sentinel_password=secret",
        "rediss://a?password=secret&ssl_ca_certs=/ca",
    ):
        assert "secret" not in mask_password(url)
    with pytest.raises(InvalidUrlError) as refused:
        parse_address("redis://me:secret@a:port")
    assert "secret" not in str(refused.value)
