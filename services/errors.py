"""What can go wrong around the processes, worded for whoever typed the command.

ServiceError               anything expected; exit code 1
├── UsageError             a value that can never work as given; exit code 2
├── NotReachableError      no server, or no ``headway up``, where one was looked for; exit code 3
└── StartError             a process cannot start, or died before it was ready; exit code 1
"""

from __future__ import annotations

from typing import ClassVar


class ServiceError(Exception):
    """An expected failure: the message says what is wrong, ``hint`` what to type."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(ServiceError):
    """A value that can never work as given."""

    exit_code = 2


class NotReachableError(ServiceError):
    """Nothing answers where a server or a running ``headway up`` was expected."""

    exit_code = 3


class StartError(ServiceError):
    """A process cannot start here, or died before it was ready."""
