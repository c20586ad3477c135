"""The options of ``headway bench``, by what they say: whom, what, when, for how long, and what is good."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headway.services import cli_options as options
from headway.services.bench.settings import Api, Arrivals
from headway.services.units import parse_duration, parse_size

_duration = options.checked(parse_duration)
_size = options.checked(parse_size)

# Whom.
Url = Annotated[
    str,
    typer.Option(
        envvar="HEADWAY_URL",
        metavar="URL",
        help="An OpenAI-compatible server, or redis://, unix://… for Headway's own queue.",
    ),
]
Model = Annotated[str | None, typer.Option(metavar="NAME", help="Default: the one that is served.")]
Endpoint = Annotated[Api, typer.Option(help="Which of OpenAI's endpoints.")]
Workers = Annotated[
    list[str] | None,
    typer.Option(
        envvar="HEADWAY_METRICS_URL",
        metavar="URL",
        help="A Headway worker's metrics port: its settings and steps go into the result.",
    ),
]

# How much, and when.
Rates = Annotated[str, typer.Option(metavar="N,…", help="Requests a second; several: one point each.")]
Concurrencies = Annotated[
    str | None,
    typer.Option(metavar="N,…", help="Closed loop: so many clients, each asking again when answered."),
]
FindKnee = Annotated[
    bool, typer.Option("--find-knee", help="Search on for the highest rate that meets the limits.")
]
Attainment = Annotated[float, typer.Option(min=0.01, max=1.0, help="Share of requests that must meet them.")]
MostPoints = Annotated[int, typer.Option(min=1, help="Rates that the search tries at most.")]
Process = Annotated[
    Arrivals | None,
    typer.Option(help="Default: the trace if there is one, else poisson.", show_default=False),
]
Burstiness = Annotated[
    float, typer.Option(min=0.1, max=20, help="Coefficient of variation of the gaps (burst).")
]
OnSeconds = Annotated[
    float, typer.Option(parser=_duration, metavar="DURATION", help="Requests come (on-off) …")
]
OffSeconds = Annotated[float, typer.Option(parser=_duration, metavar="DURATION", help="… and none come.")]
Trace = Annotated[
    Path | None, typer.Option(metavar="FILE", help="CSV with TIMESTAMP, ContextTokens, GeneratedTokens.")
]
RateScales = Annotated[
    str | None,
    typer.Option(metavar="X,…", help="Instead of --rate: the trace so many times as fast as recorded."),
]

# What.
ContextTokens = Annotated[
    int | None, typer.Option("--context", min=2, metavar="TOKENS", help="Default: as the server says.")
]
PromptTokens = Annotated[int, typer.Option(min=1, help="Prompt, where no trace gives lengths.")]
AnswerTokens = Annotated[int, typer.Option(min=1, help="Answer, where no trace gives lengths.")]
LengthSpread = Annotated[
    float, typer.Option(min=0, max=3, help="Log-normal lengths around these; 0: all alike, 1: as chats.")
]
SharedPrefixTokens = Annotated[
    int, typer.Option(min=0, help="All prompts begin with so many more, the same ones.")
]
Deadline = Annotated[
    float | None,
    typer.Option(parser=_duration, metavar="DURATION", help="Each request brings it along; default: none."),
]
Texts = Annotated[
    list[Path] | None, typer.Option(metavar="FILE", help="Cut prompts from it; default: random words.")
]
Tokenizer = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Count prompts with this tokenizer.json or model.")
]
Tenants = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="TOML as of headway simulate: shares, weights, classes, deadlines."),
]
Temperature = Annotated[float, typer.Option(min=0, max=2, help="0: greedy.")]
IgnoreEos = Annotated[
    bool, typer.Option(help="Have every answer go on to its length, where the server knows how.")
]
CountEvents = Annotated[
    bool, typer.Option("--count-events", help="For servers without usage: an event with text is a token.")
]
Seed = Annotated[int, typer.Option(help="The same seed sends the same requests.")]

# Who reads.
CancelRatio = Annotated[
    float, typer.Option(min=0, max=0.9, help="Share of clients that leave in the middle.")
]
SlowReaders = Annotated[float, typer.Option(min=0, max=0.9, help="Share of clients that read slowly …")]
SlowRate = Annotated[float, typer.Option(parser=_size, metavar="SIZE", help="… so many bytes a second.")]

# For how long, and from how many processes.
Warmup = Annotated[
    float, typer.Option(parser=_duration, metavar="DURATION", help="Of each point, not measured.")
]
Duration = Annotated[
    float, typer.Option(parser=_duration, metavar="DURATION", help="Of each point, measured.")
]
Drain = Annotated[
    float,
    typer.Option(parser=_duration, metavar="DURATION", help="How long to wait for the last answers."),
]
ClientProcesses = Annotated[
    int, typer.Option(min=1, max=64, help="Send from so many processes: each is one core at most.")
]
MaxOpen = Annotated[int, typer.Option(min=1, help="Requests open at once.")]

# What is good, and what is believed.
SloTtft = Annotated[str, typer.Option(metavar="DURATION|none", help="Limit of the first token.")]
SloTpot = Annotated[
    str, typer.Option(metavar="DURATION|none", help="Limit of the mean time of each further token.")
]
SloE2e = Annotated[str, typer.Option(metavar="DURATION|none", help="Limit of the whole answer.")]
MaxLateness = Annotated[
    float,
    typer.Option(parser=_duration, metavar="DURATION", help="A client that is later than this is invalid."),
]
MaxClientCpu = Annotated[float, typer.Option(min=0.05, max=1.0, help="Or busier, as a share of a core.")]

# Where it goes.
JsonFile = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the whole result; - prints it.")
]
HtmlFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a report with pictures, one page by itself.")
]
