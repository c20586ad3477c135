"""Signatures as Standard Webhooks has them: HMAC-SHA256 over ``id.timestamp.body``."""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets
from hashlib import sha256
from typing import Final

PREFIX: Final = "whsec_"


def new_secret() -> str:
    """A fresh secret (24 random bytes)."""
    return PREFIX + base64.b64encode(secrets.token_bytes(24)).decode()


def check_secret(secret: str) -> str:
    """The secret; raises ValueError for a text that is none."""
    try:
        size = len(base64.b64decode(secret.removeprefix(PREFIX), validate=True))
    except binascii.Error:
        size = 0
    if not secret.startswith(PREFIX) or not 24 <= size <= 64:
        raise ValueError(f"a secret is {PREFIX} and 24 to 64 bytes as base64")
    return secret


def signed_headers(secret: str, message_id: str, timestamp_unix: int, body: bytes) -> dict[str, str]:
    """The three headers by which a receiver knows who sent it, and when."""
    key = base64.b64decode(secret.removeprefix(PREFIX))
    signed = b".".join((message_id.encode(), str(timestamp_unix).encode(), body))
    signature = base64.b64encode(hmac.new(key, signed, sha256).digest()).decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp_unix),
        "webhook-signature": f"v1,{signature}",
    }
