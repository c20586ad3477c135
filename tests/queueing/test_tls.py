"""TLS: what is trusted, what is refused and how that is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.certificates import Authority
from tests.queueing.conftest import BODY, MODEL, follow, stop
from tests.server_groups import ClusterServers, SentinelServers, TcpServer

import headway.queueing.node as node_module
from headway.queueing.errors import QueueUnavailableError, ServerUnsuitableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.queueing.conftest import OpenQueue

StartTls = Callable[..., TcpServer]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def tls_options(authority: Authority, alternative: str = "IP:127.0.0.1,DNS:localhost") -> tuple[str, ...]:
    """A server's certificate for these names, and that clients need none."""
    certificate, key = authority.sign("server", alternative)
    files = ("--tls-cert-file", str(certificate), "--tls-key-file", str(key))
    return (*files, "--tls-ca-cert-file", str(authority.ca), "--tls-auth-clients", "no")


@pytest.fixture
def start_tls(authority: Authority) -> Iterator[StartTls]:
    """``start_tls("--tls-auth-clients", "yes", alternative="DNS:host")``: a Redis over TLS only."""
    servers: list[TcpServer] = []

    def start(*options: str, alternative: str = "IP:127.0.0.1,DNS:localhost") -> TcpServer:
        files = tls_options(authority, alternative)
        servers.append(TcpServer("redis7", *files, *options, port_option="--tls-port"))
        servers[-1].start()
        return servers[-1]

    yield start
    for server in servers:
        server.remove()


async def test_a_job_travels_over_tls_with_a_ca_of_ones_own(
    start_tls: StartTls, authority: Authority, open_queue: OpenQueue
) -> None:
    queue = open_queue(f"rediss://{start_tls().place}/0?ssl_ca_certs={authority.ca}")
    await queue.check_server()
    submitted = await queue.submit_body(MODEL, BODY, key="k")
    (claim,) = await queue.claim(MODEL, "w", 1)
    await queue.finish([stop(claim, 0)])
    assert len(await follow(queue, submitted.job_id)) == 1


async def test_an_unknown_ca_is_refused_with_the_remedy(start_tls: StartTls, open_queue: OpenQueue) -> None:
    with pytest.raises(ServerUnsuitableError, match="ssl_ca_certs"):
        await open_queue(f"rediss://{start_tls().place}").check_server()


async def test_another_cas_certificate_is_refused(
    start_tls: StartTls, tmp_path: Path, open_queue: OpenQueue
) -> None:
    other = Authority(tmp_path, "other")
    with pytest.raises(ServerUnsuitableError, match="not trusted"):
        await open_queue(f"rediss://{start_tls().place}?ssl_ca_certs={other.ca}").check_server()


async def test_a_certificate_of_another_host_is_refused_unless_told_otherwise(
    start_tls: StartTls, authority: Authority, open_queue: OpenQueue
) -> None:
    server = start_tls(alternative="DNS:elsewhere.example")
    url = f"rediss://{server.place}?ssl_ca_certs={authority.ca}"
    with pytest.raises(ServerUnsuitableError, match="a name that the certificate has"):
        await open_queue(url).check_server()
    await open_queue(f"{url}&ssl_check_hostname=no").check_server()
    await open_queue(f"rediss://{server.place}?ssl_cert_reqs=none").check_server()


async def test_a_server_that_wants_our_certificate_gets_it(
    start_tls: StartTls, authority: Authority, open_queue: OpenQueue
) -> None:
    server = start_tls("--tls-auth-clients", "yes")
    url = f"rediss://{server.place}?ssl_ca_certs={authority.ca}"
    with pytest.raises((ServerUnsuitableError, QueueUnavailableError)):
        await open_queue(url).check_server()
    certificate, key = authority.sign("client")
    await open_queue(f"{url}&ssl_certfile={certificate}&ssl_keyfile={key}").check_server()


async def test_tls_to_a_plain_port_and_plain_to_a_tls_port_say_so(
    start_tls: StartTls, authority: Authority, open_queue: OpenQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_module, "CALL_SECONDS", 0.5)
    plain = TcpServer("redis7")
    try:
        plain.start()
        with pytest.raises(QueueUnavailableError, match="does this port speak TLS"):
            await open_queue(f"rediss://{plain.place}?ssl_ca_certs={authority.ca}").check_server()
    finally:
        plain.remove()
    with pytest.raises(QueueUnavailableError):
        await open_queue(f"redis://{start_tls().place}").check_server()


def test_a_file_that_is_not_there_is_named_before_anything_is_connected(
    tmp_path: Path, open_queue: OpenQueue
) -> None:
    with pytest.raises(ServerUnsuitableError, match=r"none\.crt"):
        open_queue(f"rediss://localhost?ssl_ca_certs={tmp_path}/none.crt")


async def test_a_cluster_over_tls_is_followed_from_node_to_node(
    authority: Authority, open_queue: OpenQueue
) -> None:
    options = (*tls_options(authority), "--port", "0", "--tls-cluster", "yes", "--tls-replication", "yes")
    cluster = ClusterServers("redis7", *options, port_option="--tls-port")
    try:
        cluster.start()
        queue = open_queue(f"{cluster.url.replace('redis+', 'rediss+')}?ssl_ca_certs={authority.ca}")
        await queue.check_server()
        for model in ("a", "b", "c", "d", "e", "f"):  # with near certainty on more than one node
            body = b'{"model":"%s","prompt":"x"}' % model.encode()
            assert (await queue.submit_body(model, body, key="k")).created
    finally:
        cluster.remove()


async def test_sentinels_over_tls_name_a_primary_over_tls(
    authority: Authority, open_queue: OpenQueue
) -> None:
    options = (*tls_options(authority), "--tls-replication", "yes")
    watched = SentinelServers("redis7", *options, port_option="--tls-port")
    try:
        watched.start()
        queue = open_queue(f"{watched.url.replace('redis+', 'rediss+')}?ssl_ca_certs={authority.ca}")
        await queue.check_server()
        assert (await queue.submit_body(MODEL, BODY, key="k")).created
    finally:
        watched.remove()
