"""The few questions asked of a Redis or Valkey server on a unix socket while it starts or is adopted.

Twenty lines of RESP instead of a client library: ``headway up`` has its server running before redis-py
would have been imported.
"""

from __future__ import annotations

import socket
from io import BufferedReader
from pathlib import Path

TIMEOUT_SECONDS = 1.0


class NoAnswerError(Exception):
    """Nobody listens, or whoever does gives no usable answer in time."""


class LocalServer:
    """Asks one server, one connection per question."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)

    def listens(self) -> bool:
        """Whether somebody accepts connections there, whatever they are."""
        try:
            self._connect().close()
        except NoAnswerError:
            return False
        return True

    def is_loading(self) -> bool:
        """Whether it still loads its data; raises NoAnswerError when it does not answer at all."""
        reply = self._ask("PING")
        if reply == ["PONG"]:
            return False
        if reply[0].startswith("LOADING"):
            return True
        raise NoAnswerError(reply[0])

    def pid(self) -> int:
        """Its process id."""
        for line in self._ask("INFO", "server")[0].splitlines():
            if line.startswith("process_id:"):
                return int(line.partition(":")[2])
        raise NoAnswerError("INFO names no process")

    def setting(self, name: str) -> str:
        """One configuration value."""
        reply = self._ask("CONFIG", "GET", name)
        if len(reply) != 2:
            raise NoAnswerError(f"CONFIG GET {name}: {reply}")
        return reply[1]

    def set(self, name: str, value: str) -> None:
        """Change one configuration value."""
        reply = self._ask("CONFIG", "SET", name, value)
        if reply != ["OK"]:
            raise NoAnswerError(f"CONFIG SET {name}: {reply}")

    def _connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(TIMEOUT_SECONDS)
        try:
            connection.connect(self._path)
        except OSError as error:
            connection.close()
            raise NoAnswerError(str(error)) from None
        return connection

    def _ask(self, *words: str) -> list[str]:
        """Send one command; the reply as a flat list of strings, an error reply as its text."""
        with self._connect() as connection, connection.makefile("rb") as replies:
            try:
                command = [b"*%d\r\n" % len(words)]
                command += [b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode()) for word in words]
                connection.sendall(b"".join(command))
                return _read_reply(replies)
            except (OSError, ValueError) as error:
                raise NoAnswerError(str(error)) from None


def _read_reply(stream: BufferedReader) -> list[str]:
    """One RESP2 reply, arrays flattened."""
    head = stream.readline()
    kind, rest = head[:1], head[1:].rstrip(b"\r\n")
    if kind == b"*":
        return [text for _ in range(int(rest)) for text in _read_reply(stream)]
    if kind == b"$":
        return [stream.read(int(rest) + 2)[:-2].decode()]
    if kind in (b"+", b"-", b":"):
        return [rest.decode()]
    raise ValueError(f"not a Redis reply: {head[:40]!r}")
