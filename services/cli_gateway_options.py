"""The options that bound a gateway, once for ``headway gateway`` and ``headway up``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from headway.services.cli_options import checked
from headway.services.gateway_limits import check_origin
from headway.services.units import parse_size

LEAST_BYTES: Final = 1024


def _bound(text: str) -> int:
    size = parse_size(text)
    if size < LEAST_BYTES:
        raise ValueError(f"{text!r}: at least {LEAST_BYTES} bytes, or no request fits")
    return size


MaxBodySize = Annotated[
    int,
    typer.Option(
        "--max-body-size",
        parser=checked(_bound),
        envvar="HEADWAY_MAX_BODY_SIZE",
        metavar="SIZE",
        help="Largest request body, such as 8MiB; files for batches have their own bound.",
    ),
]
MaxHeaderSize = Annotated[
    int,
    typer.Option(
        "--max-header-size",
        parser=checked(_bound),
        envvar="HEADWAY_MAX_HEADER_SIZE",
        metavar="SIZE",
        help="Largest request head: request line and headers.",
    ),
]
MaxConnectionsPerTenant = Annotated[
    int | None,
    typer.Option(
        "--max-connections-per-tenant",
        min=1,
        envvar="HEADWAY_MAX_CONNECTIONS_PER_TENANT",
        metavar="N",
        help="Requests of one tenant served at once, open streams included; default: any number.",
    ),
]
CorsOrigins = Annotated[
    str,
    typer.Option(
        "--cors-origins",
        parser=checked(check_origin),
        envvar="HEADWAY_CORS_ORIGINS",
        metavar="ORIGIN,…",
        help="Web pages whose scripts may call, such as https://app.example; '*': any. Default: none.",
    ),
]
AdminKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--admin-key-file",
        envvar="HEADWAY_ADMIN_KEY_FILE",
        metavar="FILE",
        help="Holds a key for /admin; default: HEADWAY_ADMIN_KEY, if that is set.",
    ),
]
