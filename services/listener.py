"""The HTTP socket: opened by ``headway up`` and handed to the gateway, so that a restart refuses nobody.

While a gateway starts again, connections wait in the socket's backlog instead of being refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket

from headway.services.errors import StartError, UsageError

BACKLOG = 2048
UNSENT_BYTES = 64 << 10
"""What the kernel takes of an answer before its reader has taken what came earlier. By itself it takes
megabytes, whole answers, of each reader that does not read; and nobody knows that this one is behind."""


def open_listener(host: str, port: int) -> socket.socket:
    """A listening TCP socket (port 0: a free port); raises StartError that names who holds the port."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError):
        raise UsageError(f"--host {host!r} is no address of this machine", hint="--host 127.0.0.1") from None
    listener = socket.socket(family, kind, protocol)
    try:
        # A restart must not wait for connections of the last run that linger in TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # Linux and macOS; connections inherit it
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise _cannot_listen(host, port, error) from None
    listener.setblocking(False)
    return listener


def check_port_free(port: int, option: str) -> None:
    """Raise StartError when somebody listens on this port of 127.0.0.1."""
    try:
        open_listener("127.0.0.1", port).close()
    except StartError as error:
        raise StartError(str(error), hint=f"{option} {port + 1}, or stop the other process") from None


def url_of(listener: socket.socket) -> str:
    """The URL under which a local client reaches the socket."""
    address: tuple[str, int] = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address[0], address[0])
    return f"http://[{host}]:{address[1]}" if ":" in host else f"http://{host}:{address[1]}"


def _cannot_listen(host: str, port: int, error: OSError) -> StartError:
    if error.errno == errno.EADDRINUSE:
        holder = _holder_of(port)
        return StartError(
            f"port {port} on {host} is used" + (f" by {holder}" if holder else ""),
            hint=f"--port {port + 1} (or HEADWAY_PORT={port + 1}), or stop the other process",
        )
    if error.errno == errno.EACCES:
        return StartError(
            f"port {port} needs more rights than this user has",
            hint="--port 8000 (above 1023 anyone may listen)",
        )
    return StartError(
        f"cannot listen on {host}:{port}: {error.strerror}", hint="--host 127.0.0.1 --port 8000"
    )


def _holder_of(port: int) -> str | None:
    """The process that listens on a port: id and command, as far as the kernel lets us see."""
    try:
        import psutil
    except ImportError:
        return None
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            listens = connection.status == psutil.CONN_LISTEN and tuple(connection.laddr)[1:2] == (port,)
            if listens and connection.pid is not None:
                words = psutil.Process(connection.pid).cmdline()
                command = " ".join(words)
                shown = command if len(command) <= 80 else command[:79] + "…"
                return f"pid {connection.pid}: {shown}"
    return None


async def answers_http(url: str, path: str, timeout_seconds: float) -> bool:
    """Whether anything that speaks HTTP answers there, whatever its status code says."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(timeout_seconds):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            return (await reader.readline()).startswith(b"HTTP/1.")
    except (OSError, TimeoutError):
        return False
    finally:
        if writer is not None:
            writer.close()
