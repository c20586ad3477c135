"""``headway tune`` on the command line."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headway.services import cli_engine_options as engine_options
from headway.services import cli_options as options
from headway.services.bench.option_values import parse_scale
from headway.services.given_options import refuse_ignored
from headway.services.settings import WorkerSettings, default_cache_dir
from headway.services.units import parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable

    from headway.services.simulated_device import Device

_WORKER = WorkerSettings()
_duration = options.checked(parse_duration)
_CALIBRATE_SECONDS = 60.0
_OF_THE_ENGINE = (
    *("dtype", "device", "threads", "cpu_kernels", "quantization", "kv_cache_dtype", "kv_cache"),
    *("max_model_len", "tune_kernels", "cache_dir", "pin_threads"),
)


def add_tune_command(app: typer.Typer) -> None:
    """Add the command to the ``headway`` command."""
    app.command()(tune)


def tune(
    context: typer.Context,
    *,
    trace: Annotated[
        Path, typer.Option(metavar="FILE", help="CSV with TIMESTAMP, ContextTokens, GeneratedTokens.")
    ],
    slo_ttft: Annotated[
        float, typer.Option(parser=_duration, metavar="DURATION", help="Limit of the first token.")
    ],
    slo_tpot: Annotated[
        float, typer.Option(parser=_duration, metavar="DURATION", help="Limit of the mean gap.")
    ],
    rate: Annotated[
        float | None, typer.Option(min=1e-6, help="Requests a second at random; default: as the trace came.")
    ] = None,
    rate_scale: Annotated[float, typer.Option(min=1e-6, help="The trace this many times as fast.")] = 1.0,
    length_scale: options.LengthScale = "1",
    duration: Annotated[
        float,
        typer.Option(parser=_duration, metavar="DURATION", help="Of each load that settings are tried on."),
    ] = 120.0,
    seed: Annotated[int, typer.Option(help="The same seed and calibration give the same result.")] = 0,
    calibration: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What `headway calibrate` wrote; default: measure for a minute."),
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(help="Instead of this machine: a100, h100, h200, mi300x; nothing is confirmed."),
    ] = None,
    tensor_parallel: engine_options.TensorParallel = _WORKER.tensor_parallel,
    confirm: Annotated[bool, typer.Option(help="Try the best two on the real engine.")] = True,
    confirm_duration: Annotated[
        float, typer.Option(parser=_duration, metavar="DURATION", help="How long, each.")
    ] = 30.0,
    model: options.Model = _WORKER.model,
    dtype: engine_options.Dtype = _WORKER.dtype,
    device: engine_options.Device = _WORKER.device,
    threads: engine_options.Threads = None,
    cpu_kernels: engine_options.CpuKernelsOption = _WORKER.cpu_kernels,
    quantization: engine_options.QuantizationOption = _WORKER.quantization,
    kv_cache_dtype: engine_options.KvCacheDTypeOption = _WORKER.kv_cache_dtype,
    kv_cache: engine_options.KvCache = None,
    max_model_len: engine_options.MaxModelLen = None,
    tune_kernels: engine_options.TuneKernels = _WORKER.tunes_kernels,
    cache_dir: engine_options.CacheDirectory = None,
    pin_threads: engine_options.PinThreads = _WORKER.pins_threads,
    json_output: options.JsonOutput = False,
) -> None:
    """Find the settings that serve a trace best within its limits, and say what to expect of them.

    The scheduler is simulated on this machine as it was measured; the best two settings then run for real.
    """
    _refuse_ignored_options(context, is_confirmed=confirm and hardware is None)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is loaded, as `headway worker` does

    from headway.services.arrivals import read_trace
    from headway.services.collector import look_for_cycles_seldom
    from headway.services.simulation_report import Limits
    from headway.services.tune import TuneLoad, Tuner
    from headway.services.tune_report import as_json, as_lines

    worker = WorkerSettings(
        model=model,
        dtype=dtype,
        device=device,
        threads=threads,
        cpu_kernels=cpu_kernels,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        kv_cache_bytes=kv_cache,
        max_model_len=max_model_len,
        tensor_parallel=tensor_parallel,
        tunes_kernels=tune_kernels,
        cache_dir=cache_dir or default_cache_dir(),
        pins_threads=pin_threads,
    )
    look_for_cycles_seldom()
    limits = Limits(slo_ttft, slo_tpot)
    scale = options.checked(parse_scale, "--length-scale")(length_scale)
    load = TuneLoad(read_trace(trace), rate, rate_scale, scale, duration, seed)
    confirm_seconds = confirm_duration if confirm and hardware is None else None
    load.check(confirm_seconds)  # before the minute that measuring takes
    device_for = _devices(worker, calibration, hardware)
    tuned = Tuner(worker, device_for, load, limits, show=_show).run(confirm_seconds)
    name = device_for(0).name
    if json_output:
        print(json.dumps(as_json(tuned, limits, name)))
    else:
        print("\n".join(as_lines(tuned, limits, name)))


def _refuse_ignored_options(context: typer.Context, *, is_confirmed: bool) -> None:
    """Raise UsageError for an option that says nothing beside the others."""
    given = context.params
    if given["rate"] is not None:
        told = "--rate draws arrivals at random, --rate-scale is for those of the trace"
        refuse_ignored(context, ["rate_scale"], told, "one of the two")
    if given["hardware"] is not None:
        told = "--hardware stands for another machine, of which nothing is measured or tried"
        refuse_ignored(context, ["calibration", *_OF_THE_ENGINE], told)
        if given["confirm"]:
            refuse_ignored(context, ["confirm"], told)
    elif given["calibration"] is not None and not is_confirmed:
        told = "the engine was measured for --calibration, and with --no-confirm none runs"
        refuse_ignored(context, ["tensor_parallel", *_OF_THE_ENGINE], told)
    if not is_confirmed:
        refuse_ignored(context, ["confirm_duration"], "nothing is confirmed")


def _show(text: str) -> None:
    """Progress, on one line of a terminal, line by line anywhere else."""
    end = "\r" if sys.stderr.isatty() else "\n"
    print(f"{text:78}", end=end, file=sys.stderr, flush=True)


def _devices(
    worker: WorkerSettings, calibration: Path | None, hardware: str | None
) -> Callable[[int], Device]:
    """The device by seed: named hardware, a calibration's file, or this machine measured now."""
    from headway.services.calibrate import calibrate
    from headway.services.simulate_settings import SimulateSettings
    from headway.services.simulated_device import THIS_MACHINE, device_of, find_device

    if hardware is None and calibration is None:
        measured = calibrate(worker, _CALIBRATE_SECONDS, _show)
        return lambda seed: device_of(measured, seed)
    asked = SimulateSettings(
        hardware=hardware or THIS_MACHINE,
        model=worker.model,
        calibration=calibration,
        tensor_parallel=worker.tensor_parallel if hardware and worker.tensor_parallel > 1 else None,
    )
    find_device(asked)  # says what is wrong with it before anything is tried
    return lambda seed: find_device(replace(asked, seed=seed))
