"""The options of the command line, once each: name, ``HEADWAY_…`` variable, help.

Every option of ``up``, ``gateway`` and ``worker`` is also a variable: ``--max-sequences`` is
``HEADWAY_MAX_SEQUENCES``. Of the other commands, those that a script would set once are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer

from headway.services.errors import ServiceError, UsageError
from headway.services.settings import (
    LogFormat,
)
from headway.services.tenant_weights import parse_weights
from headway.services.units import parse_duration, parse_size

Parsed = TypeVar("Parsed")


def checked(parse: Callable[[str], Parsed], flag: str | None = None) -> Callable[[str], Parsed]:
    """A parser whose ValueError becomes a usage error (exit code 2).

    ``flag`` names the option where typer, which does not call it, cannot.
    """

    def parse_option(text: str) -> Parsed:
        # A default comes in as the value that it is.
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # typer passes defaults through
            return text  # type: ignore[unreachable]  # the same
        try:
            return parse(text)
        except ValueError as error:
            hint = None if flag is None else f"'{flag}'"
            raise typer.BadParameter(str(error), param_hint=hint) from None

    return parse_option


def group(help_text: str) -> typer.Typer:
    """A command with commands of its own."""
    return typer.Typer(help=help_text, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


def ask(question: str) -> None:
    """Return if somebody says yes. Raises UsageError where nobody is there to be asked."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    try:
        answer = input()
    except EOFError:
        print(file=sys.stderr)
        raise UsageError(
            "nobody is here to say yes, so nothing was done", hint="the same with --yes"
        ) from None
    if answer.strip().lower() not in {"y", "yes"}:
        raise ServiceError("nothing was done")


size = checked(parse_size)
weights = checked(parse_weights)
"""For ``Weights``: typer has no options of several pairs."""
duration = checked(parse_duration)

RedisUrl = Annotated[
    str | None,
    typer.Option(
        "--redis-url",
        envvar="HEADWAY_REDIS_URL",
        metavar="URL",
        help="redis://, rediss:// or unix:// URL of the queue's server.",
    ),
]
StateDirectory = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        envvar="HEADWAY_STATE_DIR",
        metavar="DIR",
        help="Where `headway up` keeps its queue, logs and state.",
        show_default="~/.local/state/headway",
    ),
]
Host = Annotated[str, typer.Option(envvar="HEADWAY_HOST", help="Address to listen on; 0.0.0.0 for all.")]
Port = Annotated[
    int, typer.Option(min=0, max=65535, envvar="HEADWAY_PORT", help="HTTP port; 0 takes a free one.")
]
Workers = Annotated[int, typer.Option(min=1, max=256, envvar="HEADWAY_WORKERS", help="Worker processes.")]
Model = Annotated[
    str,
    typer.Option(
        envvar="HEADWAY_MODEL", help="smollm2-135m, a .gguf file, a model folder, or a hub id (org/name)."
    ),
]
ServedName = Annotated[
    str | None,
    typer.Option(
        envvar="HEADWAY_SERVED_NAME", metavar="NAME", help="Name under which jobs ask for the model."
    ),
]
RedisPort = Annotated[
    int | None,
    typer.Option(
        min=1, max=65535, envvar="HEADWAY_REDIS_PORT", help="Open the embedded server on 127.0.0.1:PORT too."
    ),
]
RedisMemory = Annotated[
    int | None,
    typer.Option(
        parser=size,
        envvar="HEADWAY_REDIS_MEMORY",
        metavar="SIZE",
        help="Bound of the embedded server's data, such as 512MiB.",
    ),
]
Tenants = Annotated[
    Path | None,
    typer.Option(
        envvar="HEADWAY_TENANTS",
        metavar="FILE",
        help="tenants.toml with their limits, applied now and whenever it changes.",
    ),
]
JobTtft = Annotated[
    float | None,
    typer.Option(
        parser=duration,
        metavar="DURATION",
        help="The first token should come within this; give --tpot too. Default: as its class.",
    ),
]
JobTpot = Annotated[
    float | None,
    typer.Option(parser=duration, metavar="DURATION", help="… and each further token within this."),
]
DrainSeconds = Annotated[
    float,
    typer.Option(
        parser=duration,
        envvar="HEADWAY_DRAIN_SECONDS",
        metavar="DURATION",
        help="How long open answers may still finish when stopping.",
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        min=0,
        max=65535,
        envvar="HEADWAY_METRICS_PORT",
        help="Prometheus port; with `up` the first worker's, the others count on, the batch service last.",
    ),
]
MetricsHost = Annotated[str, typer.Option(envvar="HEADWAY_METRICS_HOST", help="Address of the metrics port.")]
Otlp = Annotated[
    str | None,
    typer.Option(
        "--otlp",
        envvar=["HEADWAY_OTLP", "OTEL_EXPORTER_OTLP_ENDPOINT"],
        metavar="URL",
        help="OpenTelemetry collector for traces (OTLP over HTTP), such as http://collector:4318.",
    ),
]
LogFormatOption = Annotated[
    LogFormat, typer.Option("--log-format", envvar="HEADWAY_LOG_FORMAT", help="auto: pretty on a terminal.")
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    typer.Option(envvar="HEADWAY_LOG_LEVEL", help="Least level that is logged."),
]
JsonOutput = Annotated[bool, typer.Option("--json", help="For scripts: JSON, one value a line.")]
LengthScale = Annotated[
    str, typer.Option(metavar="X|fit", help="Trace lengths times this; fit: its longest fits the context.")
]
"""Read with ``parse_scale``: what comes of ``fit`` is None, which typer takes for an option not given."""
OfModel = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="Of this model only; default: all.")
]
Limit = Annotated[int, typer.Option(min=1, max=10_000, metavar="N", help="How many to show at most.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="A job id, as `headway submit` prints it.")]
WorkerId = Annotated[
    str,
    typer.Option(
        envvar="HEADWAY_WORKER_ID", metavar="ID", help="Unique in the fleet; default: w-HOST-PID-RANDOM."
    ),
]
LeaseSeconds = Annotated[
    float,
    typer.Option(
        parser=duration,
        envvar="HEADWAY_LEASE_SECONDS",
        metavar="DURATION",
        help="A dead worker's jobs move on after this long at the latest.",
    ),
]
HungAfterSeconds = Annotated[
    float,
    typer.Option(
        parser=duration,
        envvar="HEADWAY_HUNG_AFTER_SECONDS",
        metavar="DURATION",
        help="A step that takes longer is taken for hung, and the worker ends.",
    ),
]
Deadline = Annotated[
    float | None,
    typer.Option(
        parser=duration,
        envvar="HEADWAY_DEADLINE",
        metavar="DURATION",
        help="Past it the job never starts, or stops with what it has; such as 30s.",
    ),
]
