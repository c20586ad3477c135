"""``headway bench`` on the command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from headway.services import cli_options as options
from headway.services.bench.option_values import parse_counts, parse_limit, parse_numbers, parse_scale
from headway.services.bench.settings import Api, Arrivals, BenchSettings, Slos
from headway.services.given_options import refuse_ignored, typed_of
from headway.services.units import parse_duration, parse_size

KEY: Final = "HEADWAY_API_KEY"
"""Environment variable of the key; with ``_TENANT`` behind it, of one tenant's."""
_DEFAULT = BenchSettings()
_duration = options.checked(parse_duration)
_size = options.checked(parse_size)


def tenant_keys() -> tuple[tuple[str, str], ...]:
    """The keys of single tenants, out of the environment: HEADWAY_API_KEY_ACME is acme's."""
    start = f"{KEY}_"
    return tuple((name[len(start) :], key) for name, key in os.environ.items() if name.startswith(start))


def add_bench_command(app: typer.Typer) -> None:
    """Add the command to the ``headway`` command."""
    group = typer.Typer(invoke_without_command=True, add_completion=False, rich_markup_mode=None)
    group.callback(invoke_without_command=True)(bench)
    group.command("compare")(compare)
    app.add_typer(group, name="bench")


def bench(
    context: typer.Context,
    *,
    url: Annotated[
        str,
        typer.Option(
            envvar="HEADWAY_URL",
            metavar="URL",
            help="An OpenAI-compatible server, or redis://, unix://… for Headway's own queue.",
        ),
    ] = _DEFAULT.url,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Default: the one that is served.")
    ] = None,
    api: Annotated[Api, typer.Option(help="Which of OpenAI's endpoints.")] = _DEFAULT.api,
    rate: Annotated[
        str, typer.Option(metavar="N,…", help="Requests a second; several: one point each.")
    ] = "1",
    concurrency: Annotated[
        str | None,
        typer.Option(metavar="N,…", help="Closed loop: so many clients, each asking again when answered."),
    ] = None,
    find_knee: Annotated[
        bool, typer.Option("--find-knee", help="Search on for the highest rate that meets the limits.")
    ] = False,
    attainment: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="Share of requests that must meet them.")
    ] = _DEFAULT.attainment,
    most_points: Annotated[
        int, typer.Option(min=1, help="Rates that the search tries at most.")
    ] = _DEFAULT.most_points,
    arrivals: Annotated[
        Arrivals | None,
        typer.Option(help="Default: the trace if there is one, else poisson.", show_default=False),
    ] = None,
    burstiness: Annotated[
        float, typer.Option(min=0.1, max=20, help="Coefficient of variation of the gaps (burst).")
    ] = _DEFAULT.burstiness,
    on: Annotated[
        float, typer.Option(parser=_duration, metavar="DURATION", help="Requests come (on-off) …")
    ] = _DEFAULT.on_seconds,
    off: Annotated[
        float, typer.Option(parser=_duration, metavar="DURATION", help="… and none come.")
    ] = _DEFAULT.off_seconds,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CSV with TIMESTAMP, ContextTokens, GeneratedTokens.")
    ] = None,
    rate_scale: Annotated[
        str | None,
        typer.Option(metavar="X,…", help="Instead of --rate: the trace so many times as fast as recorded."),
    ] = None,
    length_scale: options.LengthScale = "1",
    context_tokens: Annotated[
        int | None, typer.Option("--context", min=2, metavar="TOKENS", help="Default: as the server says.")
    ] = None,
    prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Prompt, where no trace gives lengths.")
    ] = _DEFAULT.prompt_tokens,
    answer_tokens: Annotated[
        int, typer.Option(min=1, help="Answer, where no trace gives lengths.")
    ] = _DEFAULT.answer_tokens,
    length_spread: Annotated[
        float, typer.Option(min=0, max=3, help="Log-normal lengths around these; 0: all alike, 1: as chats.")
    ] = _DEFAULT.length_spread,
    shared_prefix_tokens: Annotated[
        int, typer.Option(min=0, help="All prompts begin with so many more, the same ones.")
    ] = _DEFAULT.shared_prefix_tokens,
    deadline: Annotated[
        float | None,
        typer.Option(
            parser=_duration, metavar="DURATION", help="Each request brings it along; default: none."
        ),
    ] = None,
    text: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Cut prompts from it; default: random words.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Count prompts with this tokenizer.json or model.")
    ] = None,
    tenants: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="TOML as of headway simulate: shares, weights, classes, deadlines."
        ),
    ] = None,
    cancel_ratio: Annotated[
        float, typer.Option(min=0, max=0.9, help="Share of clients that leave in the middle.")
    ] = _DEFAULT.cancel_ratio,
    slow_readers: Annotated[
        float, typer.Option(min=0, max=0.9, help="Share of clients that read slowly …")
    ] = _DEFAULT.slow_ratio,
    slow_rate: Annotated[
        float, typer.Option(parser=_size, metavar="SIZE", help="… so many bytes a second.")
    ] = _DEFAULT.slow_bytes_per_second,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="0: greedy.")] = _DEFAULT.temperature,
    ignore_eos: Annotated[
        bool, typer.Option(help="Have every answer go on to its length, where the server knows how.")
    ] = _DEFAULT.ignores_eos,
    count_events: Annotated[
        bool, typer.Option("--count-events", help="For servers without usage: an event with text is a token.")
    ] = _DEFAULT.counts_events,
    warmup: Annotated[
        float, typer.Option(parser=_duration, metavar="DURATION", help="Of each point, not measured.")
    ] = _DEFAULT.warmup,
    duration: Annotated[
        float, typer.Option(parser=_duration, metavar="DURATION", help="Of each point, measured.")
    ] = _DEFAULT.duration,
    drain: Annotated[
        float,
        typer.Option(parser=_duration, metavar="DURATION", help="How long to wait for the last answers."),
    ] = _DEFAULT.drain,
    client_processes: Annotated[
        int, typer.Option(min=1, max=64, help="Send from so many processes: each is one core at most.")
    ] = _DEFAULT.client_processes,
    max_open: Annotated[int, typer.Option(min=1, help="Requests open at once.")] = _DEFAULT.max_open,
    seed: Annotated[int, typer.Option(help="The same seed sends the same requests.")] = _DEFAULT.seed,
    slo_ttft: Annotated[str, typer.Option(metavar="DURATION|none", help="Limit of the first token.")] = "1s",
    slo_tpot: Annotated[
        str, typer.Option(metavar="DURATION|none", help="Limit of the mean time of each further token.")
    ] = "100ms",
    slo_e2e: Annotated[
        str, typer.Option(metavar="DURATION|none", help="Limit of the whole answer.")
    ] = "none",
    max_lateness: Annotated[
        float,
        typer.Option(
            parser=_duration, metavar="DURATION", help="A client that is later than this is invalid."
        ),
    ] = _DEFAULT.max_lateness,
    max_client_cpu: Annotated[
        float, typer.Option(min=0.05, max=1.0, help="Or busier, as a share of a core.")
    ] = _DEFAULT.max_client_cpu,
    worker: Annotated[
        list[str] | None,
        typer.Option(
            envvar="HEADWAY_METRICS_URL",
            metavar="URL",
            help="A Headway worker's metrics port: its settings and steps go into the result.",
        ),
    ] = None,
    json_output: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the whole result; - prints it.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a report with pictures, one page by itself.")
    ] = None,
) -> None:
    """Measure a server: what it does at which load, and whether the figures can be believed.

    Exit codes: 0 measured, 4 measured but invalid (the client was the bottleneck), 130 interrupted.
    """
    if context.invoked_subcommand is not None:
        refuse_ignored(context, typed_of(context), f"{context.invoked_subcommand} has options of its own")
        return
    from headway.services.bench.command import run_bench

    settings = BenchSettings(
        url=url,
        model=model,
        api=api,
        api_key=os.environ.get(KEY) or None,
        tenant_keys=tenant_keys(),
        rates=tuple(options.checked(parse_numbers)(rate)),
        concurrencies=() if concurrency is None else tuple(options.checked(parse_counts)(concurrency)),
        arrivals=arrivals,
        burstiness=burstiness,
        on_seconds=on,
        off_seconds=off,
        trace=trace,
        rate_scales=() if rate_scale is None else tuple(options.checked(parse_numbers)(rate_scale)),
        length_scale=options.checked(parse_scale)(length_scale),
        context_tokens=context_tokens,
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        length_spread=length_spread,
        shared_prefix_tokens=shared_prefix_tokens,
        deadline_seconds=deadline,
        texts=tuple(text or ()),
        tokenizer=tokenizer,
        tenants=tenants,
        cancel_ratio=cancel_ratio,
        slow_ratio=slow_readers,
        slow_bytes_per_second=slow_rate,
        temperature=temperature,
        ignores_eos=ignore_eos,
        counts_events=count_events,
        warmup=warmup,
        duration=duration,
        drain=drain,
        client_processes=client_processes,
        max_open=max_open,
        seed=seed,
        slos=Slos(*(options.checked(parse_limit)(limit) for limit in (slo_ttft, slo_tpot, slo_e2e))),
        attainment=attainment,
        finds_knee=find_knee,
        most_points=most_points,
        max_lateness=max_lateness,
        max_client_cpu=max_client_cpu,
        worker_urls=tuple(worker or ()),
    )
    refuse_ignored_options(context, settings)
    raise typer.Exit(run_bench(settings, json_output, html))


def refuse_ignored_options(context: typer.Context, settings: BenchSettings) -> None:
    """Raise UsageError for an option that says nothing beside the others."""
    if settings.arrivals != "burst":
        refuse_ignored(context, ["burstiness"], "gaps are drawn with it for bursts", "--arrivals burst")
    if settings.arrivals != "on-off":
        refuse_ignored(context, ["on", "off"], "requests come and go so in one process", "--arrivals on-off")
    if settings.concurrencies:
        told = "--concurrency is a closed loop: clients ask again when they have their answer"
        refuse_ignored(context, ["rate", "rate_scale", "arrivals"], told)
    if settings.rate_scales:
        refuse_ignored(context, ["rate"], "--rate-scale says how fast the trace comes", "one of the two")
    if settings.trace is not None:
        lengths = ["prompt_tokens", "answer_tokens", "length_spread"]
        refuse_ignored(context, lengths, "lengths are those of --trace", "--length-scale")
    else:
        refuse_ignored(context, ["length_scale"], "it scales the lengths of a trace", "--trace FILE")
    if settings.tenants is not None:
        told = "with --tenants each tenant has its own, in the file"
        refuse_ignored(context, ["shared_prefix_tokens", "deadline"], told)
    if not settings.finds_knee:
        refuse_ignored(context, ["most_points"], "it bounds the search for the knee", "--find-knee")
    if not settings.slow_ratio:
        refuse_ignored(context, ["slow_rate"], "nobody reads slowly", "--slow-readers 0.1")
    if settings.is_native:
        refuse_ignored(context, ["count_events"], "Headway's queue tells the tokens of each event")


def compare(
    results: Annotated[list[Path], typer.Argument(metavar="FILE…", help="What headway bench --json wrote.")],
    *,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Of each file in turn; default: the file's name.")
    ] = None,
    at: Annotated[
        float | None,
        typer.Option(
            min=1e-6,
            metavar="RATE",
            help="Whose timelines to draw; default: the first one's knee, or its most goodput.",
        ),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a report with pictures, one page by itself.")
    ] = None,
    json_output: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the comparison; - prints it.")
    ] = None,
) -> None:
    """Set results side by side: curves over the load, ratios to the first, who ran when."""
    from headway.services.bench.command import run_compare

    raise typer.Exit(run_compare(tuple(results), tuple(label or ()), at, json_output, html))
