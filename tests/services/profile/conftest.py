"""The ``headway`` command inside the test's process."""

from tests.services.up.conftest import command

__all__ = ["command"]
