"""Headway: a message-queue-driven LLM inference service.

``headway.queueing`` holds what producers and consumers need; the other packages
hold the gateway, the engine, its kernels and the processes that run them.
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("headway")
except PackageNotFoundError:  # a source tree on sys.path that nobody installed
    __version__ = "0.0.0"

__all__ = ["__version__"]
