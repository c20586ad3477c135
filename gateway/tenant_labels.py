"""Tenants as label values, of which there may only be so many: clients choose their names."""

from __future__ import annotations

from typing import Final

OTHER: Final = "other"


class TenantLabels:
    """The label value of each tenant: its name for the first ``most``, then ``other``.

    A name keeps its value for the life of the process, since a counter that changes its series has lost its
    past. A tenant that is really called ``other`` is counted with the rest.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def __call__(self, tenant: str) -> str:
        """What stands in the label ``tenant``."""
        if tenant not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(tenant)
        return tenant
