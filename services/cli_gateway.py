"""``headway gateway``: one process that serves HTTP."""

from __future__ import annotations

from typing import Annotated

import typer

from headway.services import cli_batch_options as batch_options
from headway.services import cli_gateway_options as gateway_options
from headway.services import cli_options as options
from headway.services.gateway_limits import DEFAULT_LIMITS, GatewayLimits
from headway.services.settings import GatewaySettings

_GATEWAY = GatewaySettings()


def add_gateway_command(app: typer.Typer) -> None:
    """Add the command to the ``headway`` command."""
    app.command()(gateway)


def gateway(
    *,
    redis_url: options.RedisUrl = _GATEWAY.redis_url,
    host: options.Host = _GATEWAY.host,
    port: options.Port = _GATEWAY.port,
    listen_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
    tenants: options.Tenants = None,
    drain_seconds: options.DrainSeconds = _GATEWAY.drain_seconds,
    otlp: options.Otlp = None,
    max_body_size: gateway_options.MaxBodySize = DEFAULT_LIMITS.max_body_bytes,
    max_header_size: gateway_options.MaxHeaderSize = DEFAULT_LIMITS.max_head_bytes,
    max_connections_per_tenant: gateway_options.MaxConnectionsPerTenant = None,
    cors_origins: gateway_options.CorsOrigins = "",
    admin_key_file: gateway_options.AdminKeyFile = None,
    files: batch_options.Files = None,
    log_format: options.LogFormatOption = _GATEWAY.log_format,
    log_level: options.LogLevel = "info",
) -> None:
    """Run one gateway: HTTP on one side, the queue on the other."""
    from headway.services.gateway_process import run_gateway

    settings = GatewaySettings(
        redis_url=redis_url or _GATEWAY.redis_url,
        host=host,
        port=port,
        listen_fd=listen_fd,
        tenants=tenants,
        drain_seconds=drain_seconds,
        otlp_url=otlp,
        limits=GatewayLimits(
            max_body_bytes=max_body_size,
            max_head_bytes=max_header_size,
            max_connections_per_tenant=max_connections_per_tenant,
            cors_origins=cors_origins,
            admin_key_file=None if admin_key_file is None else str(admin_key_file.absolute()),
        ),
        files=files,
        log_format=log_format,
        log_level=log_level,
    )
    raise typer.Exit(run_gateway(settings))
