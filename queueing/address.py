"""Where the queue's server is, as one URL says it: one server, a Cluster, or a primary that Sentinels know.

====================================================== =====================================================
URL                                                    what
====================================================== =====================================================
redis://[user:password@]host[:port][/db]               one server
unix://[user:password@]/path/to/socket[?db=0]          one server on this machine
redis+cluster://[user:password@]host[:port],host,…     a Cluster; any of its nodes, several are safer
redis+sentinel://[user:password@]host[:port],…/name    the primary called ``name`` (or ``/name/db``)
rediss://, rediss+cluster://, rediss+sentinel://       the same over TLS
====================================================== =====================================================

Options after ``?``: ``username``, ``password``, ``db``, ``sentinel_username``, ``sentinel_password``;
``replicas=1``: a job counts as accepted only when that many replicas have it. With TLS ``ssl_ca_certs`` (the
CA's file), ``ssl_certfile`` and ``ssl_keyfile`` (our own certificate), ``ssl_check_hostname=no`` (for
addresses that the certificate does not name) and ``ssl_cert_reqs=none`` (trusts anybody). They are called as
in redis-py, whose URLs the first kinds are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import parse_qsl, unquote

from headway.queueing.errors import InvalidUrlError

Kind = Literal["one", "cluster", "sentinel"]
Place = tuple[str, int]
"""Host and port."""

PORT: Final = 6379
SENTINEL_PORT: Final = 26379
_SCHEME: Final = re.compile(r"(?:(?P<unix>unix)|redis(?P<tls>s?)(?:\+(?P<kind>cluster|sentinel))?)\Z")
_PLAIN_OPTIONS: Final = ("username", "password", "db", "replicas")
_SENTINEL_OPTIONS: Final = ("sentinel_username", "sentinel_password")
_TLS_OPTIONS: Final = (
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_check_hostname",
    "ssl_cert_reqs",
)
SCHEMES_HINT: Final = (
    "redis://HOST:6379/0, unix:///path/to/redis.sock, redis+cluster://HOST:PORT,HOST:PORT, "
    "redis+sentinel://HOST:PORT,HOST:PORT/SERVICE; rediss… for TLS"
)


@dataclass(frozen=True, slots=True)
class Tls:
    """What is trusted, and what we show: paths of PEM files, empty where there is none."""

    ca_certs: str = ""
    certfile: str = ""
    keyfile: str = ""
    checks_hostname: bool = True
    checks_certificate: bool = True


@dataclass(frozen=True, slots=True)
class Address:
    """A URL, understood. ``places``: the server, some nodes of the Cluster, or the Sentinels."""

    kind: Kind
    places: tuple[Place, ...] = ()
    path: str = ""
    """The unix socket; empty: TCP."""
    service: str = ""
    """The primary's name among the Sentinels."""
    db: int = 0
    username: str = ""
    password: str = ""
    sentinel_username: str = ""
    sentinel_password: str = ""
    tls: Tls | None = None
    replicas: int = 0
    """How many replicas must have a job before it counts as accepted."""

    @property
    def is_encrypted(self) -> bool:
        """Whether nobody on the way can read along: TLS, or no way at all."""
        return self.tls is not None or bool(self.path)


def parse_address(url: str) -> Address:
    """The address that a URL means; raises InvalidUrlError that says what is wrong with it."""
    scheme, found, rest = url.partition("://")
    match = _SCHEME.match(scheme)
    if not found or match is None:
        raise InvalidUrlError(f"a URL begins like one of these: {SCHEMES_HINT}")
    rest, _, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    credentials, _, hosts = authority.rpartition("@")
    username, _, password = credentials.partition(":")
    kind: Kind = match["kind"] or "one"  # type: ignore[assignment]  # the pattern names no other
    has_tls = match["tls"] == "s"
    options = _options(query, kind, has_tls=has_tls)
    places: tuple[Place, ...] = ()
    if match["unix"]:
        if hosts or not path:
            raise InvalidUrlError("a unix socket's URL has three slashes: unix:///path/to/redis.sock")
        service, database = "", options.get("db", "")
        path = unquote(slash + path)
    else:
        places = _places(hosts, SENTINEL_PORT if kind == "sentinel" else PORT)
        service, database = _service_and_db(kind, path, options.get("db", ""))
        path = ""
    if kind == "one" and len(places) > 1:
        raise InvalidUrlError(
            "several hosts need redis+cluster:// or redis+sentinel://, to say what they are"
        )
    return Address(
        kind=kind,
        places=places,
        path=path,
        service=service,
        db=_database(kind, database),
        username=unquote(username) or options.get("username", ""),
        password=unquote(password) or options.get("password", ""),
        sentinel_username=options.get("sentinel_username", ""),
        sentinel_password=options.get("sentinel_password", ""),
        tls=_tls(options) if has_tls else None,
        replicas=_replicas(options.get("replicas", "0")),
    )


def _options(query: str, kind: Kind, *, has_tls: bool) -> Mapping[str, str]:
    known = (
        *_PLAIN_OPTIONS,
        *(_SENTINEL_OPTIONS if kind == "sentinel" else ()),
        *(_TLS_OPTIONS if has_tls else ()),
    )
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            reason = "needs TLS (rediss…)" if name in _TLS_OPTIONS else "is not known"
            raise InvalidUrlError(f"the option {name!r} {reason} here; there are: {', '.join(known)}")
        if name in options:
            raise InvalidUrlError(f"the option {name!r} comes twice")
        options[name] = value
    return options


def _places(hosts: str, default_port: int) -> tuple[Place, ...]:
    places = tuple(_place(host, default_port) for host in (hosts or "localhost").split(","))
    if len(set(places)) < len(places):
        raise InvalidUrlError("the same host and port come twice")
    return places


def _place(text: str, default_port: int) -> Place:
    host, colon, port = text.rpartition(":")
    if text.startswith("["):  # an IPv6 address has colons of its own
        host, bracket, port = text[1:].partition("]")
        colon = port[:1]
        port = port[1:]
        if not bracket or colon not in {"", ":"}:
            raise InvalidUrlError(f"{text!r}: an IPv6 address is written like [::1]:6379")
    elif not colon:
        host, port = text, ""
    if not host or (":" in host and not text.startswith("[")):
        raise InvalidUrlError(f"{text!r} is no host and port; an IPv6 address is written like [::1]:6379")
    if colon and not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise InvalidUrlError(f"{text!r}: {port!r} is no port (1 to 65535)")
    return unquote(host), int(port) if colon else default_port


def _service_and_db(kind: Kind, path: str, option: str) -> tuple[str, str]:
    """The Sentinels' name of the primary and the database, as texts."""
    parts = [unquote(part) for part in path.split("/")]
    if kind == "sentinel":
        if not parts[0]:
            raise InvalidUrlError(
                "a Sentinel URL names the primary to find: redis+sentinel://HOST:26379/SERVICE"
            )
        if len(parts) > 2:
            raise InvalidUrlError("after the hosts come the service and perhaps a database: /SERVICE/0")
        return parts[0], option or (parts[1] if len(parts) == 2 else "")
    if len(parts) > 1:
        raise InvalidUrlError("after the host comes only a database: /0")
    return "", option or parts[0]


def _database(kind: Kind, text: str) -> int:
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()):
        raise InvalidUrlError(f"{text!r} is no database: a number such as 0")
    if kind == "cluster" and int(text):
        raise InvalidUrlError("a Cluster has database 0 only")
    return int(text)


def _replicas(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 100):
        raise InvalidUrlError(f"replicas is a number of replicas such as 1, not {text!r}")
    return int(text)


def _tls(options: Mapping[str, str]) -> Tls:
    if bool(options.get("ssl_certfile")) < bool(options.get("ssl_keyfile")):
        raise InvalidUrlError("ssl_keyfile is of no use without ssl_certfile")
    return Tls(
        ca_certs=options.get("ssl_ca_certs", ""),
        certfile=options.get("ssl_certfile", ""),
        keyfile=options.get("ssl_keyfile", ""),
        checks_hostname=_choice(
            options, "ssl_check_hostname", yes=("yes", "true", "1"), no=("no", "false", "0")
        ),
        checks_certificate=_choice(options, "ssl_cert_reqs", yes=("required",), no=("none",)),
    )


def _choice(options: Mapping[str, str], name: str, *, yes: tuple[str, ...], no: tuple[str, ...]) -> bool:
    text = options.get(name, yes[0]).lower()
    if text not in (*yes, *no):
        raise InvalidUrlError(f"{name} is {yes[0]} or {no[0]}, not {text!r}")
    return text in yes
