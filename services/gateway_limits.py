"""What a gateway bounds, and whom it lets in besides API keys: the same for ``gateway`` and ``up``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headway.services.errors import StartError

ADMIN_KEY: Final = "HEADWAY_ADMIN_KEY"
LEAST_KEY_CHARS: Final = 24
"""Of a key that people choose: as long as 128 random bits in base64, about."""


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Bounds of one gateway process; the administrators' own key is read apart, so that no log shows it."""

    max_body_bytes: int = 4 << 20
    """A job may hold 1 MiB of UTF-8, and JSON's escapes make that up to three times."""
    max_head_bytes: int = 64 << 10
    """Request line and headers."""
    max_connections_per_tenant: int | None = None
    """Requests of one tenant that are served at once, open streams included; None: any number."""
    cors_origins: str = ""
    """Origins of web pages whose scripts may call, separated by commas; ``*``: any. Empty: none."""
    admin_key_file: str | None = None
    """Holds a key for ``/admin``; None: the environment's, if it has one."""

    @property
    def origins(self) -> tuple[str, ...]:
        """The origins one by one."""
        return tuple(origin for part in self.cors_origins.split(",") if (origin := part.strip()))

    def arguments(self) -> list[tuple[str, object | None]]:
        """As options of ``headway gateway``."""
        return [
            ("--max-body-size", self.max_body_bytes),
            ("--max-header-size", self.max_head_bytes),
            ("--max-connections-per-tenant", self.max_connections_per_tenant),
            ("--cors-origins", self.cors_origins or None),
            ("--admin-key-file", self.admin_key_file),
        ]


DEFAULT_LIMITS: Final = GatewayLimits()


def read_admin_key(file: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """The key in the file, else in HEADWAY_ADMIN_KEY; empty: there is none. Raises StartError."""
    if file is None:
        key, where = environment.get(ADMIN_KEY, "").strip(), ADMIN_KEY
    else:
        key, where = _from_file(file), file
        if not key:
            raise StartError(f"{file} is empty: it is to hold a key for /admin", hint=_HINT)
    if key and len(key) < LEAST_KEY_CHARS:
        raise StartError(
            f"the administrators' key in {where} has {len(key)} characters, fewer than {LEAST_KEY_CHARS}",
            hint=_HINT,
        )
    return key


_HINT: Final = "python -c 'import secrets; print(secrets.token_urlsafe(32))' makes one"


def _from_file(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"the administrators' key cannot be read from {file}: {error}") from None


def check_origin(text: str) -> str:
    """The origins themselves; raises ValueError for one that no browser would ever send."""
    for origin in (part.strip() for part in text.split(",")):
        scheme, found, host = origin.partition("://")
        is_origin = found and scheme in {"http", "https"} and host and not set(host) & set("/?#@ ")
        if origin and origin not in {"*", "null"} and not is_origin:
            raise ValueError(f"{origin!r}: an origin is written like https://app.example, without a path")
    return text
