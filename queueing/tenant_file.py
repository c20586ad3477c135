"""tenants.toml: one table a tenant, its fields those of TenantLimits; errors name the line."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, cast

from headway.queueing.errors import InvalidTenantError
from headway.queueing.tenants import TenantLimits, read_limits

_TABLE: Final = re.compile(r"""\s*\[\s*(?:"([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*\]""")
_FIELD: Final = re.compile(r"""\s*["']?([A-Za-z0-9_-]+)["']?\s*=""")


@dataclass(frozen=True, slots=True)
class TenantFile:
    """The tenants of a file, and a digest that is the same for the same text."""

    tenants: dict[str, TenantLimits]
    digest: str


def read_tenant_file(text: str, name: str = "tenants.toml") -> TenantFile:
    """Parse and check a file; raises InvalidTenantError that names its line and field."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        # Its message ends with "(at line 3, column 7)".
        raise InvalidTenantError(f"{name} is not valid TOML: {error}") from None
    tenants: dict[str, TenantLimits] = {}
    for tenant, fields in tables.items():
        tenants[tenant] = _limits(text, name, tenant, fields)
    return TenantFile(tenants, sha256(text.encode()).hexdigest())


def _limits(text: str, name: str, tenant: str, fields: Any) -> TenantLimits:
    if not isinstance(fields, dict):
        where = _place(text, name, None, tenant)
        raise InvalidTenantError(f'{where}: {tenant!r} stands outside of any table: begin with ["tenant"]')
    own = cast("dict[str, object]", fields)
    nested = next((key for key, value in own.items() if isinstance(value, dict)), None)
    if nested is not None:
        # TOML reads [a.b] as a table in a table.
        raise InvalidTenantError(f'{name}: a tenant with a dot in its name is written ["{tenant}.{nested}"]')
    try:
        return read_limits(tenant, own)
    except InvalidTenantError as error:
        where = _place(text, name, tenant, error.field)
        raise InvalidTenantError(f"{where}: {error}", field=error.field) from None


def _place(text: str, name: str, tenant: str | None, field: str) -> str:
    """The line of a tenant's field, or of its table, as editors and compilers write it."""
    table: str | None = None
    found = 0
    for number, line in enumerate(text.splitlines(), start=1):
        if (header := _TABLE.match(line)) is not None:
            table = next(part for part in header.groups() if part is not None)
            found = number if table == tenant else found
        elif table == tenant and (match := _FIELD.match(line)) is not None and match[1] == field:
            return f"{name}:{number}"
    return f"{name}:{found}" if found else name
