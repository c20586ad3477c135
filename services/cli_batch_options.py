"""The options of files and batches, once for ``gateway``, ``batch worker`` and ``up``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Files = Annotated[
    str | None,
    typer.Option(
        "--files",
        envvar="HEADWAY_FILES",
        metavar="PLACE",
        help="Where files lie: a folder that gateways and batch workers share, or s3://BUCKET/PREFIX.",
        show_default="files in the state dir",
    ),
]
HeartbeatFile = Annotated[
    Path | None,
    typer.Option(
        "--heartbeat-file",
        envvar="HEADWAY_BATCH_HEARTBEAT_FILE",
        metavar="FILE",
        help="Touched every other second while it takes tasks: for a container's health check.",
        show_default=False,
    ),
]
BrokerUrl = Annotated[
    str | None,
    typer.Option(
        "--broker-url",
        envvar="HEADWAY_BROKER_URL",
        metavar="URL",
        help="Celery's own server; default: the queue's. A Redis Cluster needs one.",
    ),
]
Batch = Annotated[
    bool | None,
    typer.Option(
        "--batch/--no-batch",
        envvar="HEADWAY_BATCH",
        help="Start the batch service too.",
        show_default="if celery is installed",
    ),
]
AllowPrivate = Annotated[
    bool,
    typer.Option(
        "--webhook-allow-private",
        envvar="HEADWAY_WEBHOOK_ALLOW_PRIVATE",
        help="Let webhooks reach http:// and addresses of this network, where tenants are trusted with it.",
    ),
]
