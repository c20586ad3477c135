"""A client library's errors in our words."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Final

from redis import exceptions as redis_errors

from headway.queueing.errors import (
    NotNowError,
    QueueingError,
    QueueUnavailableError,
    ServerUnsuitableError,
)

_NOT_NOW: Final = ("LOADING", "BUSY", "TRYAGAIN", "UNBLOCKED")
_NO_WRITES: Final = ("OOM", "MISCONF", "NOREPLICAS")
_NOT_HERE: Final = ("READONLY", "MASTERDOWN", "CLUSTERDOWN")
"""First words of replies that mean: not now. Nothing was written. The last ones may be put right by asking
another server, the middle ones by somebody's work on this one."""

_NOT_HERE_ERRORS: Final = (
    redis_errors.ReadOnlyError,
    redis_errors.ClusterDownError,
    redis_errors.MasterDownError,
)
"""The classes by which redis-py tells some of these replies, without their first words."""

FULL_RETRY_SECONDS: Final = 5.0


class FunctionMissingError(QueueingError):
    """The server does not have our function library: flushed, or never loaded."""


class RefusedError(QueueingError):
    """The server or a function refused the call; the message is the server's."""


class WrongTypeError(RefusedError):
    """A key of ours holds something of another type: somebody wrote over it."""


class MovedError(QueueingError):
    """The slot belongs to another node of the Cluster: ``host`` (empty: the one asked) and ``port``."""

    def __init__(self, message: str, slot: int, host: str, port: int) -> None:
        super().__init__(message)
        self.slot = slot
        self.host = host
        self.port = port


class AskError(MovedError):
    """The slot is on its way to another node, and this key is there already, or nowhere."""


def translate(error: Exception, command: Sequence[object] = ()) -> QueueingError:
    """A client library's error in our words; ``command``: what it answers, if that is one command."""
    if isinstance(error.__cause__, redis_errors.ResponseError | redis_errors.AuthenticationError):
        error = error.__cause__  # refused while connecting, which redis-py reports as a lost connection
    elif isinstance(error.__context__, ssl.SSLError):
        error = error.__context__  # likewise
    text = str(error) or "no answer in time"
    if isinstance(error, redis_errors.AuthenticationError | redis_errors.AuthorizationError):
        return ServerUnsuitableError(
            f"the server refused the login ({text}): check user and password in the URL"
        )
    if isinstance(error, ssl.SSLError):
        return _about_tls(error)
    if isinstance(error, redis_errors.ConnectionError | redis_errors.TimeoutError | OSError):
        return QueueUnavailableError(f"the queue's server cannot be reached: {text}")
    if text.startswith("WRONGTYPE") and len(command) > 1 and command[0] != "FCALL":
        return WrongTypeError(
            f"the key {command[1]} has another type than Headway's (see queueing/keys.py): somebody wrote "
            "over it. Look at it with `redis-cli TYPE`, keep what you need, then DEL it"
        )
    return _of_reply(error, text)


def _of_reply(error: Exception, text: str) -> QueueingError:
    if isinstance(error, redis_errors.MovedError):  # in redis-py a kind of AskError, here the other way round
        return MovedError(text, *_redirect(text))
    if isinstance(error, redis_errors.AskError):
        return AskError(text, *_redirect(text))
    if (away := _away(error, text)) is not None:
        return away
    if "Function not found" in text:
        return FunctionMissingError(text)
    if isinstance(error, redis_errors.NoPermissionError) or text.startswith("NOPERM"):
        return ServerUnsuitableError(
            f"the server's access rules refuse a command ({text}): see the ACL in docs/wire-protocol.md"
        )
    return RefusedError(text)


def _redirect(text: str) -> tuple[int, str, int]:
    """Slot, host and port of ``MOVED 3999 127.0.0.1:6381``."""
    slot, place = text.split()[-2:]
    host, _, port = place.rpartition(":")
    return int(slot), host, int(port)


def _away(error: Exception, text: str) -> QueueUnavailableError | None:
    message = f"the queue's server refuses writes now: {text}"
    if isinstance(error, redis_errors.OutOfMemoryError) or text.startswith(_NO_WRITES):
        return NotNowError(message, retry_after_seconds=FULL_RETRY_SECONDS)
    if isinstance(error, _NOT_HERE_ERRORS) or text.startswith(_NOT_HERE):
        return QueueUnavailableError(message)
    is_for_later = isinstance(error, redis_errors.TryAgainError) or text.startswith(_NOT_NOW)
    return NotNowError(message) if is_for_later else None


def _about_tls(error: ssl.SSLError) -> QueueingError:
    """A certificate does not become better by waiting; a handshake that broke off may."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return ServerUnsuitableError(
            f"the server's certificate is not trusted ({error.verify_message}): name its CA in the URL, "
            "?ssl_ca_certs=/path/to/ca.crt, and connect by a name that the certificate has"
        )
    if error.reason in {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"}:
        return ServerUnsuitableError(f"what answers there does not speak TLS ({error.reason}): redis://…?")
    if "CERTIFICATE_REQUIRED" in str(error.reason):
        return ServerUnsuitableError(
            "the server wants a certificate of ours: ?ssl_certfile=…&ssl_keyfile=… in the URL"
        )
    return QueueUnavailableError(f"the queue's server cannot be reached: {error}")
