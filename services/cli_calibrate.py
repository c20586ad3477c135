"""``headway calibrate`` on the command line."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final

import typer

from headway.services import cli_engine_options as engine_options
from headway.services import cli_options as options
from headway.services.given_options import refuse_ignored
from headway.services.settings import WorkerSettings, default_cache_dir
from headway.services.units import parse_duration

OF_THE_ENGINE: Final = (
    *("model", "dtype", "device", "threads", "cpu_kernels", "quantization", "kv_cache_dtype", "kv_cache"),
    *(
        "host_cache",
        "max_model_len",
        "max_sequences",
        "max_batch_tokens",
        "tune_kernels",
        "cache_dir",
        "pin_threads",
    ),
)
"""Parameters of the engine that is measured here, where no worker is."""
_WORKER = WorkerSettings()
_duration = options.checked(parse_duration)


def add_calibrate_command(app: typer.Typer) -> None:
    """Add the command to the ``headway`` command."""
    app.command()(calibrate)


def calibrate(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write what was measured.")],
    *,
    seconds: Annotated[
        float, typer.Option(min=1.0, max=3600.0, help="How long to measure, after the model is loaded.")
    ] = 60.0,
    worker: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The metrics of a worker that serves now, http://127.0.0.1:9100: its steps, under its load.",
        ),
    ] = None,
    before: Annotated[
        float,
        typer.Option(
            parser=_duration, metavar="DURATION", help="From a client's sending until the engine knows of it."
        ),
    ] = 0.0,
    after: Annotated[
        float,
        typer.Option(parser=_duration, metavar="DURATION", help="From a step's end until the client has it."),
    ] = 0.0,
    model: options.Model = _WORKER.model,
    dtype: engine_options.Dtype = _WORKER.dtype,
    device: engine_options.Device = _WORKER.device,
    threads: engine_options.Threads = None,
    cpu_kernels: engine_options.CpuKernelsOption = _WORKER.cpu_kernels,
    quantization: engine_options.QuantizationOption = _WORKER.quantization,
    kv_cache_dtype: engine_options.KvCacheDTypeOption = _WORKER.kv_cache_dtype,
    kv_cache: engine_options.KvCache = None,
    host_cache: engine_options.HostCache = 0,
    max_model_len: engine_options.MaxModelLen = None,
    max_sequences: engine_options.MaxSequences = _WORKER.max_sequences,
    max_batch_tokens: engine_options.MaxBatchTokens = _WORKER.max_batch_tokens,
    tune_kernels: engine_options.TuneKernels = _WORKER.tunes_kernels,
    cache_dir: engine_options.CacheDirectory = None,
    pin_threads: engine_options.PinThreads = _WORKER.pins_threads,
) -> None:
    """Measure how long steps take here, for `simulate --hardware this-machine` and `tune`.

    Give the options that the worker will have. Nothing else should run meanwhile. With --worker nothing is
    run here: steps are read from a worker while it serves, and hold what else takes time on its machine.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is loaded, as `headway worker` does

    if worker is not None:
        refuse_ignored(
            context, OF_THE_ENGINE, "the steps are those of the worker at --worker, as it was started"
        )
    from headway.services.calibrate import calibrate as measure
    from headway.services.calibrate import calibrate_live
    from headway.services.trace_file import check_folder

    check_folder(file)
    settings = WorkerSettings(
        model=model,
        dtype=dtype,
        device=device,
        threads=threads,
        cpu_kernels=cpu_kernels,
        quantization=quantization,
        kv_cache_dtype=kv_cache_dtype,
        kv_cache_bytes=kv_cache,
        host_cache_bytes=host_cache,
        max_model_len=max_model_len,
        max_sequences=max_sequences,
        max_batch_tokens=max_batch_tokens,
        tunes_kernels=tune_kernels,
        cache_dir=cache_dir or default_cache_dir(),
        pins_threads=pin_threads,
    )
    measured = measure(settings, seconds, _show) if worker is None else calibrate_live(worker, seconds, _show)
    measured = replace(measured, before_seconds=before, after_seconds=after)
    measured.write(file)
    print(
        f"{measured.model} on {measured.machine}: {measured.steps:,} steps, "
        f"the fit is {100 * measured.error_median:.1f}% off in the median"
    )
    print(
        f"one decode {1e3 * measured.line.of_tokens(1):.1f} ms, 256 new tokens "
        f"{1e3 * measured.line.of_tokens(256):.0f} ms; written to {file}"
    )


def _show(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
