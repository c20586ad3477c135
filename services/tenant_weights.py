"""Tenants' shares as an operator writes them: ``gold=3,free=0.5``; who is not named has 1."""

from __future__ import annotations

import math

TenantWeights = tuple[tuple[str, float], ...]


def parse_weights(text: str) -> TenantWeights:
    """The shares by tenant; raises ValueError that shows how they are written."""
    weights: dict[str, float] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        tenant, equals, number = part.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = math.nan
        if not equals or not tenant or not 0.0 < weight < math.inf:
            raise ValueError(f"{part!r}: weights are written like gold=3,free=0.5, each above 0")
        weights[tenant] = weight
    return tuple(weights.items())
