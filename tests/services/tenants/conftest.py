"""The ``headway`` command in this process, on a real server."""

from __future__ import annotations

from tests.services.up.conftest import command

__all__ = ["command"]
