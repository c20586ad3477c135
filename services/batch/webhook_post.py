"""One POST to a tenant's URL, from inside our network: only to where a stranger may send us.

A URL's host is looked up once, every address that it has is checked, and the connection goes to the address
that was checked. So neither a name that points inside, nor one that changes its mind between check and use
(DNS rebinding), nor a redirect reaches anything private. Redirects are not followed, proxies not used.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Final
from urllib.parse import urlsplit

from headway import __version__

TIMEOUT_SECONDS: Final = 10.0
TOTAL_SECONDS: Final = 20.0
PORTS: Final = {"https": 443, "http": 80}
ANSWER_BYTES: Final = 4096


class WebhookRefusedError(Exception):
    """A URL that is not posted to; trying again cannot help unless it is changed."""


class WebhookFailedError(Exception):
    """It did not arrive; trying again may help."""


class WebhookPost:
    """Posts to webhooks. ``allows_private``: also to http:// and to addresses of this network."""

    def __init__(self, *, allows_private: bool) -> None:
        self._allows_private = allows_private
        self._tls = ssl.create_default_context()

    def check_url(self, url: str) -> None:
        """Raise WebhookRefusedError for a URL that is not posted to; its host is not looked up here."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise WebhookRefusedError(f"{url[:200]!r} is no URL: {error}") from None
        if parts.scheme not in PORTS or not parts.hostname or len(url) > 2000 or not url.isascii():
            raise WebhookRefusedError(f"{url[:200]!r} is no URL like https://example.org/hook")
        if any(each <= " " for each in url):
            raise WebhookRefusedError("a URL has no blanks and no control characters")
        if parts.username is not None or parts.password is not None:
            raise WebhookRefusedError("a webhook's URL carries no password: the signature says who sends")
        if self._allows_private:
            return
        if parts.scheme != "https":
            raise WebhookRefusedError("a webhook's URL begins with https://")
        if port not in (None, 443, 8443):
            raise WebhookRefusedError(f"port {port} is not one of a webhook's (443, 8443)")
        if _is_address(parts.hostname) and not is_public(parts.hostname):
            raise WebhookRefusedError(f"{parts.hostname} is not an address of the public Internet")

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> None:
        """Deliver; returns once the receiver answered 2xx. Raises WebhookFailedError, and as check_url."""
        self.check_url(url)
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        own = {"content-type": "application/json", "user-agent": f"headway/{__version__}"}
        with self._connected(parts.scheme, host, port, self._address_of(host, port)) as connection:
            connection.request("POST", path, body, {**own, **headers})
            answer = connection.getresponse()
            answer.read(ANSWER_BYTES)
        if not 200 <= answer.status < 300:
            raise WebhookFailedError(f"{host} answered {answer.status}")

    def _address_of(self, host: str, port: int) -> str:
        """The address to connect to, checked; raises WebhookRefusedError, WebhookFailedError."""
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise WebhookFailedError(f"{host} is not known: {error}") from None
        addresses = [str(place[0]) for *_, place in found]
        inside = [address for address in addresses if not is_public(address)]
        if inside and not self._allows_private:
            raise WebhookRefusedError(
                f"{host} is at {inside[0]}, which is not an address of the public Internet; an operator "
                "allows it with --webhook-allow-private"
            )
        return addresses[0]

    @contextmanager
    def _connected(
        self, scheme: str, host: str, port: int, address: str
    ) -> Generator[http.client.HTTPConnection]:
        """A connection to that address, for TOTAL_SECONDS; the receiver's certificate must be the host's.

        Each read has a time-out of its own, but a receiver that sends a byte now and then, be it of its
        handshake, must not hold us either.
        """
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
        connection.auto_open = 0  # it would look the host up again
        try:
            with closing(connection):
                connection.sock = socket.create_connection((address, port), TIMEOUT_SECONDS)
                with _cut_after(TOTAL_SECONDS, connection.sock.dup()):
                    if scheme == "https":
                        connection.default_port = 443
                        connection.sock = self._tls.wrap_socket(connection.sock, server_hostname=host)
                    yield connection
        except (OSError, http.client.HTTPException) as error:
            raise WebhookFailedError(f"{host}: {str(error) or type(error).__name__}") from None


@contextmanager
def _cut_after(seconds: float, link: socket.socket) -> Generator[None]:
    """End a connection that lasts longer; ``link`` is a second hold on it, closed at the end."""
    end = threading.Timer(seconds, _cut, [link])
    end.daemon = True
    end.start()
    try:
        yield
    finally:
        end.cancel()
        link.close()


def _cut(link: socket.socket) -> None:
    with suppress(OSError):
        link.shutdown(socket.SHUT_RDWR)


def _is_address(host: str) -> bool:
    """Whether a URL's host is an address, and not a name that has one."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def is_public(address: str) -> bool:
    """Whether an address is one of the public Internet, also where it is wrapped in one of IPv6."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv4Address):
        return found.is_global and not found.is_multicast
    if found in _NAT64:
        return ipaddress.IPv4Address(int(found) & 0xFFFFFFFF).is_global
    inner = found.sixtofour or (found.teredo or (None, None))[1]
    return found in _UNICAST and found.is_global and (inner is None or inner.is_global)


_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
"""All of IPv6 that is given out so far; the rest has had many meanings, most of them local."""
