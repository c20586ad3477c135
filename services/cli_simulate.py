"""``headway simulate`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final

import typer

from headway.services import cli_engine_options as engine_options
from headway.services import cli_options as options
from headway.services.fair_settings import FairSettings
from headway.services.given_options import refuse_ignored
from headway.services.hardware import Coefficients
from headway.services.simulate_settings import PreemptionChoice, Process, SimulateSettings
from headway.services.units import parse_duration, parse_size

LONGEST_SECONDS: Final = 3600.0
"""Of any coefficient: what takes longer is a slip of the pen."""
_DEFAULT = SimulateSettings()
_duration = options.checked(parse_duration)
_size = options.checked(parse_size)


def parse_coefficients(text: str) -> Coefficients:
    """Seconds ``a,b,c`` or ``a,b,c,q``; raises ValueError that shows how they are written."""
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    is_line = len(numbers) in (3, 4) and all(0.0 <= number <= LONGEST_SECONDS for number in numbers)
    if not is_line or numbers[0] + numbers[1] <= 0:
        raise ValueError(
            f"{text!r}: seconds a,b,c,q of a + b·new + c·context + q·pairs, such as 6e-3,2e-5,5e-8,0"
        )
    return Coefficients(*numbers)


_coefficients = options.checked(parse_coefficients)


def add_simulate_command(app: typer.Typer) -> None:
    """Add the command to the ``headway`` command."""
    app.command()(simulate)


def simulate(
    context: typer.Context,
    *,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help=f"Whom to compare; may be given several times. Default: {_DEFAULT.policies[0]}.",
        ),
    ] = None,
    batch_window: engine_options.BatchWindow = None,
    age_limit: engine_options.AgeLimit = None,
    quantum: engine_options.Quantum = None,
    patience: engine_options.Patience = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CSV with TIMESTAMP, ContextTokens, GeneratedTokens.")
    ] = None,
    arrivals: Annotated[
        Process | None, typer.Option(help="Default: the trace as recorded, else poisson.", show_default=False)
    ] = None,
    rate: Annotated[
        float, typer.Option(min=1e-6, help="Requests a second (poisson, burst).")
    ] = _DEFAULT.rate,
    rate_scale: Annotated[
        float, typer.Option(min=1e-6, help="Arrivals this many times as fast.")
    ] = _DEFAULT.rate_scale,
    duration: Annotated[
        float | None,
        typer.Option(parser=_duration, metavar="DURATION", help="Stop the arrivals after this, such as 10m."),
    ] = None,
    burstiness: Annotated[
        float, typer.Option(min=0.1, max=20, help="Coefficient of variation of the gaps (burst).")
    ] = _DEFAULT.burstiness,
    prompt_tokens: Annotated[
        int, typer.Option(min=1, help="Median prompt where no trace gives lengths.")
    ] = _DEFAULT.prompt_tokens,
    answer_tokens: Annotated[
        int, typer.Option(min=1, help="Median answer where no trace gives lengths.")
    ] = _DEFAULT.answer_tokens,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="The max_tokens that clients send; default: the longest answer.")
    ] = None,
    tenants: Annotated[
        Path | None, typer.Option(metavar="FILE", help="TOML: shares, weights, classes, deadlines.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = _DEFAULT.seed,
    hardware: Annotated[
        str, typer.Option(help="a100, h100, h200, mi300x, or this-machine with --calibration.")
    ] = _DEFAULT.hardware,
    model: Annotated[
        str, typer.Option(help="llama-3.1-8b, qwen2.5-7b, llama-3.1-70b or smollm2-135m.")
    ] = _DEFAULT.model,
    tensor_parallel: Annotated[
        int | None, typer.Option(min=1, max=64, help="GPUs; default: as many as the model usually takes.")
    ] = None,
    coefficients: Annotated[
        Coefficients | None,
        typer.Option(parser=_coefficients, metavar="a,b,c,q", help="Step time by fitted seconds instead."),
    ] = None,
    calibration: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What `headway calibrate` measured here.")
    ] = None,
    kv_tokens: Annotated[
        int | None, typer.Option(min=16, help="Tokens that the KV cache holds; default: what the GPU leaves.")
    ] = None,
    host_kv_tokens: Annotated[
        int, typer.Option(min=0, help="Tokens of preempted requests that host memory takes; 0: no swapping.")
    ] = _DEFAULT.host_kv_tokens,
    host_bandwidth: Annotated[
        float | None,
        typer.Option(parser=_size, metavar="SIZE", help="Bytes a second to the host; default: the GPU's."),
    ] = None,
    overcommit: Annotated[
        bool, typer.Option(help="Admit by the usual length of answers; preempt when that was wrong.")
    ] = _DEFAULT.is_overcommitted,
    preemption: Annotated[
        PreemptionChoice, typer.Option(help="By cost, or always the same way to compare.")
    ] = _DEFAULT.preemption,
    block_size: engine_options.BlockSize = _DEFAULT.block_size,
    max_sequences: engine_options.MaxSequences = _DEFAULT.max_sequences,
    max_batch_tokens: engine_options.MaxBatchTokens = _DEFAULT.max_batch_tokens,
    slo_ttft: Annotated[
        float, typer.Option(parser=_duration, metavar="DURATION", help="Limit of the first token.")
    ] = _DEFAULT.ttft_seconds,
    slo_tpot: Annotated[
        float, typer.Option(parser=_duration, metavar="DURATION", help="Limit of the mean gap.")
    ] = _DEFAULT.tpot_seconds,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw the comparison: .png or .svg; needs headway[plot]."),
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the last steps of each run as a trace for ui.perfetto.dev."),
    ] = None,
    json_output: options.JsonOutput = False,
) -> None:
    """Run the real scheduler against modelled hardware, on a virtual clock, and compare policies."""
    _refuse_ignored_options(context)
    from headway.services.collector import look_for_cycles_seldom
    from headway.services.simulate import simulate as run_simulation
    from headway.services.simulation_plot import check_plot, draw_plot
    from headway.services.simulation_table import table
    from headway.services.trace import chrome_trace
    from headway.services.trace_file import check_folder, write_trace

    if plot is not None:
        check_plot(plot)
    if timeline is not None:
        check_folder(timeline)
    look_for_cycles_seldom()
    simulated = run_simulation(
        SimulateSettings(
            policies=tuple(policy or _DEFAULT.policies),
            fair=FairSettings(age_limit, quantum, patience),
            batch_window_seconds=batch_window,
            trace=trace,
            arrivals=arrivals,
            rate=rate,
            rate_scale=rate_scale,
            duration=duration,
            burstiness=burstiness,
            prompt_tokens=prompt_tokens,
            answer_tokens=answer_tokens,
            max_tokens=max_tokens,
            tenants=tenants,
            seed=seed,
            hardware=hardware,
            model=model,
            tensor_parallel=tensor_parallel,
            coefficients=coefficients,
            calibration=calibration,
            kv_tokens=kv_tokens,
            host_kv_tokens=host_kv_tokens,
            host_bandwidth=host_bandwidth,
            is_overcommitted=overcommit,
            preemption=preemption,
            block_size=block_size,
            max_sequences=max_sequences,
            max_batch_tokens=max_batch_tokens,
            ttft_seconds=slo_ttft,
            tpot_seconds=slo_tpot,
        )
    )
    if plot is not None:
        draw_plot(plot, simulated)
    if timeline is not None:
        write_trace(timeline, chrome_trace([(name, run.timeline) for name, run in simulated.runs.items()]))
    if json_output:
        print(json.dumps(simulated.figures))
    else:
        print("\n".join(table(simulated.figures)))


def _refuse_ignored_options(context: typer.Context) -> None:
    """Raise UsageError for an option that says nothing beside the others."""
    from headway.services.simulated_device import THIS_MACHINE

    given = context.params
    process = given["arrivals"] or ("trace" if given["trace"] is not None else "poisson")
    if process != "burst":
        refuse_ignored(context, ["burstiness"], "gaps are drawn with it for bursts", "--arrivals burst")
    if process == "trace":
        told = "requests come when those of the trace came"
        refuse_ignored(context, ["rate"], told, "--rate-scale, or --arrivals poisson")
    if given["trace"] is not None:
        refuse_ignored(context, ["prompt_tokens", "answer_tokens"], "lengths are those of --trace")
    if given["coefficients"] is not None:
        told = "--coefficients stand for the hardware"
        refuse_ignored(context, ["hardware", "calibration", "tensor_parallel"], told)
    elif given["hardware"] != THIS_MACHINE:
        told = "it is of this machine, and --hardware names another"
        refuse_ignored(context, ["calibration"], told, f"--hardware {THIS_MACHINE}")
    else:
        told = "the calibration says what this machine is"
        refuse_ignored(context, ["tensor_parallel"], told)
    if not given["host_kv_tokens"]:
        refuse_ignored(context, ["host_bandwidth"], "nothing is swapped", "--host-kv-tokens TOKENS")
