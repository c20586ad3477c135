"""Headway: a message-queue-driven LLM inference service.

``from headway import Client`` (or ``SyncClient``) is all that a producer needs. ``headway.queueing``
holds the queue itself; the other packages hold the gateway, the engine, its kernels and the processes
that run them.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway.queueing.client import Client
    from headway.queueing.events import Cursor, EndEvent, JobResult, JobStatus, TokenEvent
    from headway.queueing.messages import Job, Message, Priority, SamplingParams
    from headway.queueing.sync import SyncClient

try:
    __version__ = version("headway")
except PackageNotFoundError:  # a source tree on sys.path that nobody installed
    __version__ = "0.0.0"

# Loaded at first use, so that `import headway` costs neither pydantic nor redis.
_HOMES = {
    "Client": "client",
    "Cursor": "events",
    "EndEvent": "events",
    "Job": "messages",
    "JobResult": "events",
    "JobStatus": "events",
    "Message": "messages",
    "Priority": "messages",
    "SamplingParams": "messages",
    "SyncClient": "sync",
    "TokenEvent": "events",
}

__all__ = [
    "Client",
    "Cursor",
    "EndEvent",
    "Job",
    "JobResult",
    "JobStatus",
    "Message",
    "Priority",
    "SamplingParams",
    "SyncClient",
    "TokenEvent",
    "__version__",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"headway.queueing.{home}"), name)
