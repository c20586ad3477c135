"""tenants.toml of one process: read at its start, and again whenever it changes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from headway.queueing.errors import InvalidTenantError, QueueingError
from headway.queueing.protocol import Queue
from headway.queueing.tenant_file import TenantFile, read_tenant_file
from headway.services.errors import UsageError
from headway.services.logs import get_logger

_log = get_logger("tenants")

LOOK_SECONDS: Final = 0.5
SLOW_LOOK_SECONDS: Final = 2.0
"""After an attempt that failed."""

Stamp = tuple[int, int, int]


def check_tenants_file(path: Path) -> TenantFile:
    """The file's contents; raises UsageError that names file, line and field."""
    try:
        return read_tenant_file(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(f"{path} cannot be read: {reason}", hint="--tenants FILE") from None
    except InvalidTenantError as error:
        raise UsageError(str(error), hint="docs/tenants.toml shows every field") from None


async def apply_tenants_file(queue: Queue, file: TenantFile) -> None:
    """Bring the file's tenants to the queue; the same file again changes nothing. Raises QueueingError."""
    changed = await queue.tenant_store.apply(file.tenants, file.digest)
    if changed:
        _log.info("tenants_applied", changed=changed)


async def watch_tenants_file(queue: Queue, path: Path) -> None:
    """Apply the file again after each change, for ever. A faulty one is told, and the limits stay."""
    seen: Stamp | None = _stamp(path)
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        now = _stamp(path)
        if now == seen:
            continue
        if now is None:
            _log.warning("tenants_file_gone", path=str(path), kept="the limits as they are")
            seen = now
            continue
        try:
            await apply_tenants_file(queue, check_tenants_file(path))
        except UsageError as error:
            _log.error("tenants_file_refused", error=str(error), kept="the limits as they are")
        except QueueingError as error:
            _log.warning("tenants_not_applied", error=str(error))
            await asyncio.sleep(SLOW_LOOK_SECONDS)
            continue
        seen = now


def _stamp(path: Path) -> Stamp | None:
    """Changes whenever the file does, also when an editor or a mounted volume replaces it."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
