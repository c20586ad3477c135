"""What a producer says about a file: its purpose, and how long it is kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from headway.gateway.errors import invalid_request

PURPOSES: Final = ("batch", "user_data")
"""Input of batches, and files that are only kept. Batches write ``batch_output`` themselves."""
SHORTEST_KEEP_SECONDS: Final = 3600
LONGEST_KEEP_SECONDS: Final = 2_592_000
_FORM_FIELDS: Final = {"purpose", "expires_after[anchor]", "expires_after[seconds]"}
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def purpose_of(fields: Mapping[str, str]) -> str:
    """What the file is for; raises ApiError 400."""
    unknown = next(iter(fields.keys() - _FORM_FIELDS), None)
    if unknown is not None:
        raise invalid_request(
            f"Unknown parameter: '{unknown[:100]}'.", param=unknown[:100], code="unknown_parameter"
        )
    purpose = fields.get("purpose")
    if purpose is None:
        raise invalid_request(
            "Missing required parameter: 'purpose'.", param="purpose", code="missing_required_parameter"
        )
    if purpose not in PURPOSES:
        raise invalid_request(
            f"'purpose' is one of {', '.join(PURPOSES)} here, not {purpose[:40]!r}", param="purpose"
        )
    return purpose


def keep_seconds_of(fields: Mapping[str, str]) -> int | None:
    """How long the file is to be kept, if that was said; raises ApiError 400."""
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise invalid_request("'expires_after[anchor]' is 'created_at'", param="expires_after[anchor]")
    if seconds is None or not re.fullmatch(r"[0-9]{1,9}", seconds):
        raise invalid_request(
            "'expires_after[seconds]' is a whole number of seconds", param="expires_after[seconds]"
        )
    return check_keep(int(seconds), "expires_after[seconds]")


def check_keep(seconds: int, param: str) -> int:
    """The seconds; raises ApiError 400 for fewer than an hour or more than 30 days."""
    if not SHORTEST_KEEP_SECONDS <= seconds <= LONGEST_KEEP_SECONDS:
        raise invalid_request(
            f"'{param}' must be between {SHORTEST_KEEP_SECONDS} (an hour) and {LONGEST_KEEP_SECONDS} "
            "(30 days)",
            param=param,
        )
    return seconds


def name_of(given: str) -> str:
    """The file's name without folders and control characters; it names nothing on our side."""
    name = _CONTROL.sub("", given.replace("\\", "/").rpartition("/")[2])
    return name[:255] or "upload"
