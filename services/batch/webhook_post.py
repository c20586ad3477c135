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
from collections.abc import Mapping
from contextlib import suppress
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

    def post(self, url: str, headers: Mapping[str, str], body: bytes) -> None:
        """Deliver; returns once the receiver answered 2xx. Raises WebhookFailedError, and as check_url."""
        self.check_url(url)
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
        connection = self._connect(parts.scheme, host, port, self._address_of(host, port))
        # Each read has a time-out; a receiver that sends a byte now and then must not hold us either.
        end = threading.Timer(TOTAL_SECONDS, _cut, [connection])
        end.daemon = True
        end.start()
        try:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            own = {"content-type": "application/json", "user-agent": f"headway/{__version__}"}
            connection.request("POST", path, body, {**own, **headers})
            answer = connection.getresponse()
            answer.read(ANSWER_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise WebhookFailedError(f"{host}: {str(error) or type(error).__name__}") from None
        finally:
            end.cancel()
            connection.close()
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

    def _connect(self, scheme: str, host: str, port: int, address: str) -> http.client.HTTPConnection:
        """A connection to that address; the receiver's certificate must be the host's."""
        try:
            link = socket.create_connection((address, port), TIMEOUT_SECONDS)
            if scheme == "https":
                link = self._tls.wrap_socket(link, server_hostname=host)
        except OSError as error:
            raise WebhookFailedError(f"{host}: {error}") from None
        connection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_SECONDS)
        if scheme == "https":
            connection.default_port = 443
        connection.sock = link
        return connection


def _cut(connection: http.client.HTTPConnection) -> None:
    with suppress(OSError, AttributeError):
        connection.sock.shutdown(socket.SHUT_RDWR)


def is_public(address: str) -> bool:
    """Whether an address is one of the public Internet, also where it is wrapped in one of IPv6."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo or (None, None))[1]
        if inner is None and found in _NAT64:
            inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None and not inner.is_global:
            return False
    return found.is_global and not found.is_multicast


_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
