"""A tenant's rates in the headers that OpenAI's clients know."""

from __future__ import annotations

import math

from headway.queueing.quota_values import QuotaStanding


def quota_headers(standing: QuotaStanding | None) -> dict[str, str]:
    """``x-ratelimit-limit-requests`` and its five sisters, for the rates that have a limit."""
    headers: dict[str, str] = {}
    for kind in ("requests", "tokens"):
        rate = None if standing is None else getattr(standing, kind)
        if rate is not None:
            headers[f"x-ratelimit-limit-{kind}"] = str(rate.limit)
            headers[f"x-ratelimit-remaining-{kind}"] = str(rate.remaining)
            headers[f"x-ratelimit-reset-{kind}"] = duration(rate.reset_seconds)
    return headers


def duration(seconds: float) -> str:
    """As OpenAI writes it: ``6m0s``, ``1s``, ``20ms``; rounded up, so that who waits so long is not early."""
    milliseconds = math.ceil(round(seconds * 1000, 3))
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, left = divmod(math.ceil(milliseconds / 1000), 60)
    hours, minutes = divmod(minutes, 60)
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + f"{left}s"
