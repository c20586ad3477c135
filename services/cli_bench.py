"""``headway bench`` on the command line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from headway.services import cli_bench_options as bench_options
from headway.services import cli_options as options
from headway.services.bench.option_values import parse_counts, parse_limit, parse_numbers, parse_scale
from headway.services.bench.settings import BenchSettings, Slos
from headway.services.given_options import refuse_ignored, typed_of

KEY: Final = "HEADWAY_API_KEY"
"""Environment variable of the key; with ``_TENANT`` behind it, of one tenant's."""
_DEFAULT = BenchSettings()


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
    url: bench_options.Url = _DEFAULT.url,
    model: bench_options.Model = None,
    api: bench_options.Endpoint = _DEFAULT.api,
    rate: bench_options.Rates = "1",
    concurrency: bench_options.Concurrencies = None,
    find_knee: bench_options.FindKnee = False,
    attainment: bench_options.Attainment = _DEFAULT.attainment,
    most_points: bench_options.MostPoints = _DEFAULT.most_points,
    arrivals: bench_options.Process = None,
    burstiness: bench_options.Burstiness = _DEFAULT.burstiness,
    on: bench_options.OnSeconds = _DEFAULT.on_seconds,
    off: bench_options.OffSeconds = _DEFAULT.off_seconds,
    trace: bench_options.Trace = None,
    rate_scale: bench_options.RateScales = None,
    length_scale: options.LengthScale = "1",
    context_tokens: bench_options.ContextTokens = None,
    prompt_tokens: bench_options.PromptTokens = _DEFAULT.prompt_tokens,
    answer_tokens: bench_options.AnswerTokens = _DEFAULT.answer_tokens,
    length_spread: bench_options.LengthSpread = _DEFAULT.length_spread,
    shared_prefix_tokens: bench_options.SharedPrefixTokens = _DEFAULT.shared_prefix_tokens,
    deadline: bench_options.Deadline = None,
    text: bench_options.Texts = None,
    tokenizer: bench_options.Tokenizer = None,
    tenants: bench_options.Tenants = None,
    cancel_ratio: bench_options.CancelRatio = _DEFAULT.cancel_ratio,
    slow_readers: bench_options.SlowReaders = _DEFAULT.slow_ratio,
    slow_rate: bench_options.SlowRate = _DEFAULT.slow_bytes_per_second,
    temperature: bench_options.Temperature = _DEFAULT.temperature,
    ignore_eos: bench_options.IgnoreEos = _DEFAULT.ignores_eos,
    count_events: bench_options.CountEvents = _DEFAULT.counts_events,
    warmup: bench_options.Warmup = _DEFAULT.warmup,
    duration: bench_options.Duration = _DEFAULT.duration,
    drain: bench_options.Drain = _DEFAULT.drain,
    client_processes: bench_options.ClientProcesses = _DEFAULT.client_processes,
    max_open: bench_options.MaxOpen = _DEFAULT.max_open,
    seed: bench_options.Seed = _DEFAULT.seed,
    slo_ttft: bench_options.SloTtft = "1s",
    slo_tpot: bench_options.SloTpot = "100ms",
    slo_e2e: bench_options.SloE2e = "none",
    max_lateness: bench_options.MaxLateness = _DEFAULT.max_lateness,
    max_client_cpu: bench_options.MaxClientCpu = _DEFAULT.max_client_cpu,
    worker: bench_options.Workers = None,
    json_output: bench_options.JsonFile = None,
    html: bench_options.HtmlFile = None,
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
        rates=tuple(options.checked(parse_numbers, "--rate")(rate)),
        concurrencies=()
        if concurrency is None
        else tuple(options.checked(parse_counts, "--concurrency")(concurrency)),
        arrivals=arrivals,
        burstiness=burstiness,
        on_seconds=on,
        off_seconds=off,
        trace=trace,
        rate_scales=()
        if rate_scale is None
        else tuple(options.checked(parse_numbers, "--rate-scale")(rate_scale)),
        length_scale=options.checked(parse_scale, "--length-scale")(length_scale),
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
    html: bench_options.HtmlFile = None,
    json_output: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write the comparison; - prints it.")
    ] = None,
) -> None:
    """Set results side by side: curves over the load, ratios to the first, who ran when."""
    from headway.services.bench.command import run_compare

    raise typer.Exit(run_compare(tuple(results), tuple(label or ()), at, json_output, html))
