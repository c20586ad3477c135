"""Every tenant's limits and every API key as of one moment: a value that is replaced, never changed."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from headway.queueing.tenants import EVERYONE, UNLIMITED, TenantLimits

KEY_PREFIX: Final = "hw-"
_KEY_BYTES: Final = 32
_ID_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of a key: never the key itself."""

    digest: str
    """SHA-256 in hex. A key has 256 random bits, so a slow hash would protect nothing more."""
    tenant: str
    name: str
    created_ms: int
    is_admin: bool = False
    """It may also change limits and keys over HTTP, and see all tenants."""

    @property
    def id(self) -> str:
        """By which people name it."""
        return id_of(self.digest)


def id_of(digest: str) -> str:
    """A key's name for people."""
    return digest[:_ID_DIGITS]


def new_key() -> str:
    """A fresh secret, to be shown once."""
    return KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def digest_of(secret: str) -> str:
    """What is kept of a secret."""
    return sha256(secret.encode(errors="surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class TenantBook:
    """Limits by tenant, keys by digest."""

    tenants: Mapping[str, TenantLimits] = field(default_factory=dict[str, TenantLimits])
    keys: Mapping[str, ApiKey] = field(default_factory=dict[str, ApiKey])
    broken_tenants: Mapping[str, str] = field(default_factory=dict[str, str])
    """Entries that cannot be read, with what is wrong: as if these tenants had none."""
    broken_keys: Mapping[str, str] = field(default_factory=dict[str, str])
    """Likewise of keys, by digest: they let nobody in, and the service is closed all the same."""
    is_readable: bool = True
    """False: the server's access rules keep this user from reading it, so nothing is known."""

    @property
    def is_open(self) -> bool:
        """Whether anybody may post as any tenant: as long as there is no key."""
        return self.is_readable and not self.keys and not self.broken_keys

    @property
    def complaints(self) -> tuple[str, ...]:
        """What an operator should mend, one sentence each."""
        tenants = (
            f"the limits of tenant {name} cannot be read and do not hold ({wrong}): "
            f"`headway tenants set {name} …` repairs them, `headway tenants rm {name}` removes them"
            for name, wrong in self.broken_tenants.items()
        )
        keys = (
            f"API key {id_of(digest)} cannot be read and is refused ({wrong}): "
            f"`headway keys revoke {id_of(digest)}` removes it"
            for digest, wrong in self.broken_keys.items()
        )
        return (*tenants, *keys)

    @property
    def weights(self) -> dict[str, float]:
        """Shares by tenant, those other than 1."""
        return {name: limits.weight for name, limits in self.tenants.items() if limits.weight != 1.0}

    def limits_of(self, tenant: str) -> TenantLimits:
        """The tenant's own limits, else those of everyone."""
        return self.tenants.get(tenant) or self.tenants.get(EVERYONE, UNLIMITED)

    def key_of(self, secret: str) -> ApiKey | None:
        """The key that a secret is, or None. The time this takes tells nothing: only digests are compared."""
        digest = digest_of(secret)
        key = self.keys.get(digest)
        return key if key is not None and hmac.compare_digest(key.digest, digest) else None

    def tenant_of(self, secret: str) -> str | None:
        """Whose key it is, or None."""
        key = self.key_of(secret)
        return None if key is None else key.tenant
