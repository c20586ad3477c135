"""The queue's URL as Celery is told it: the same server carries Celery's messages, under keys of its own."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from headway.queueing.address import Address, parse_address
from headway.services.errors import UsageError

KEY_PREFIX = "celery:{celery}:"
"""Before all of Celery's keys: they are told from ours, and share a slot."""


def broker_of(redis_url: str, broker_url: str | None) -> tuple[str, dict[str, Any]]:
    """Celery's URL and transport options. Raises UsageError for a Cluster: Celery has no transport for it."""
    if broker_url is not None:
        return broker_url, _options({})
    address = parse_address(redis_url)
    if address.kind == "cluster":
        raise UsageError(
            "Celery cannot carry its messages through a Redis Cluster",
            hint="--broker-url redis://HOST:6379/0 of a server beside it; jobs stay in the Cluster",
        )
    user = _credentials(address)
    if address.path:
        query = {"virtual_host": str(address.db)}
        return f"redis+socket://{user}{quote(address.path)}?{urlencode(query)}", _options({})
    if address.kind == "sentinel":
        urls = [f"sentinel://{user}{_place(host, port)}/{address.db}" for host, port in address.places]
        own = {"username": address.sentinel_username, "password": address.sentinel_password}
        kept = {name: value for name, value in own.items() if value}
        return ";".join(urls), _options({"master_name": address.service, "sentinel_kwargs": kept})
    ((host, port),) = address.places
    scheme = "redis" if address.tls is None else "rediss"
    return f"{scheme}://{user}{_place(host, port)}/{address.db}{_tls(address)}", _options({})


def _options(more: dict[str, Any]) -> dict[str, Any]:
    # A message whose worker was killed comes back after this long; by then others have done what it asked.
    return {"global_keyprefix": KEY_PREFIX, "visibility_timeout": 3600} | more


def _credentials(address: Address) -> str:
    if not address.password:
        return ""
    return f"{quote(address.username, safe='')}:{quote(address.password, safe='')}@"


def _place(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _tls(address: Address) -> str:
    tls = address.tls
    if tls is None:
        return ""
    options = {"ssl_cert_reqs": "required" if tls.checks_certificate else "none"}
    if not tls.checks_hostname:
        options["ssl_check_hostname"] = "false"
    for name in ("ca_certs", "certfile", "keyfile"):
        if value := getattr(tls, name):
            options[f"ssl_{name}"] = value
    return "?" + urlencode(options)
