"""Celery is told of the queue's server, whatever its URL, or refused with what to do."""

from __future__ import annotations

import pytest

from headway.services.batch.broker import broker_of
from headway.services.errors import UsageError


@pytest.mark.parametrize(
    ("url", "broker"),
    [
        ("redis://10.0.0.1:7000/3", "redis://10.0.0.1:7000/3"),
        ("redis://user:p%40ss@host", "redis://user:p%40ss@host:6379/0"),
        ("redis://:pw@host?db=2", "redis://:pw@host:6379/2"),
        ("unix:///run/r.sock?db=1", "redis+socket:///run/r.sock?virtual_host=1"),
        (
            "rediss://host:1?ssl_ca_certs=/ca.pem",
            "rediss://host:1/0?ssl_cert_reqs=required&ssl_ca_certs=%2Fca.pem",
        ),
        ("redis+sentinel://a:1,b:2/main", "sentinel://a:1/0;sentinel://b:2/0"),
    ],
)
def test_a_servers_url_is_told_in_celerys_words(url: str, broker: str) -> None:
    assert broker_of(url, None)[0] == broker


def test_sentinels_are_told_the_primarys_name() -> None:
    _, options = broker_of("redis+sentinel://a:1/main", None)
    assert options["master_name"] == "main"


def test_a_cluster_needs_a_broker_of_its_own() -> None:
    with pytest.raises(UsageError, match="Cluster"):
        broker_of("redis+cluster://a:1", None)
    assert broker_of("redis+cluster://a:1", "redis://b:2/0")[0] == "redis://b:2/0"
