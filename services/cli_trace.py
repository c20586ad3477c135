"""``headway trace`` on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def add_trace_command(app: typer.Typer) -> None:
    """Add the command to the ``headway`` command."""
    app.command()(trace)


def trace(
    url: Annotated[
        str,
        typer.Argument(
            envvar="HEADWAY_METRICS_URL", metavar="URL", help="A worker's metrics, http://127.0.0.1:9100."
        ),
    ],
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write it; - prints it.")
    ] = Path("headway-trace.json"),
) -> None:
    """Save a live worker's last steps and requests for ui.perfetto.dev or chrome://tracing."""
    import json

    from headway.services.trace_file import fetch_trace, write_trace

    fetched = fetch_trace(url)
    if str(output) == "-":
        print(json.dumps(fetched))
        return
    write_trace(output, fetched)
    print(f"{len(fetched['traceEvents'])} events in {output}: open it at https://ui.perfetto.dev")
