"""``headway profile`` on the command line."""

from __future__ import annotations

import json
import os
import time
from typing import Annotated

import typer

from headway.services import cli_engine_options as engine_options
from headway.services import cli_options as options
from headway.services.errors import UsageError
from headway.services.settings import WorkerSettings, default_cache_dir

_WORKER = WorkerSettings()


def add_profile_command(app: typer.Typer) -> None:
    """Add the command to the ``headway`` command."""
    app.command()(profile)


def profile(
    url: Annotated[
        str | None,
        typer.Argument(
            envvar="HEADWAY_METRICS_URL",
            metavar="URL",
            help="A worker's metrics, http://127.0.0.1:9100; without it an engine is run here.",
            show_default=False,
        ),
    ] = None,
    *,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="How long to look at the worker that works at URL.")
    ] = 10.0,
    sequences: Annotated[
        str, typer.Option(metavar="N,…", help="How many answers at a time in the engine that is run here.")
    ] = "1,4,16,32",
    model: options.Model = _WORKER.model,
    dtype: engine_options.Dtype = _WORKER.dtype,
    device: engine_options.Device = _WORKER.device,
    threads: engine_options.Threads = None,
    cpu_kernels: engine_options.CpuKernelsOption = _WORKER.cpu_kernels,
    quantization: engine_options.QuantizationOption = _WORKER.quantization,
    tensor_parallel: engine_options.TensorParallel = _WORKER.tensor_parallel,
    cuda_graphs: engine_options.CudaGraphsOption = _WORKER.has_cuda_graphs,
    tune_kernels: engine_options.TuneKernels = _WORKER.tunes_kernels,
    kv_cache_dtype: engine_options.KvCacheDTypeOption = _WORKER.kv_cache_dtype,
    cache_dir: engine_options.CacheDirectory = None,
    pin_threads: engine_options.PinThreads = _WORKER.pins_threads,
    json_output: options.JsonOutput = False,
) -> None:
    """Say what each step's time goes to: products, attention, sampling, scheduling, text, idle.

    Of a live worker, or of an engine that is run here on prompts of 180 tokens and answers of 94.
    """
    from headway.services.profile import as_json, as_lines, between, read_worker

    if url is not None:
        before = read_worker(url, time.monotonic())
        time.sleep(seconds)
        budget = between(before, read_worker(url, time.monotonic()))
        print(json.dumps(as_json(budget)) if json_output else "\n".join(as_lines(budget)))
        return
    counts = parse_counts(sequences)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is loaded, as `headway worker` does

    from headway.engine.errors import ModelError
    from headway.services.model_host import build_engine
    from headway.services.profile_run import ProfileRun, RunShape

    settings = WorkerSettings(
        model=model,
        dtype=dtype,
        device=device,
        threads=threads,
        cpu_kernels=cpu_kernels,
        quantization=quantization,
        tensor_parallel=tensor_parallel,
        has_cuda_graphs=cuda_graphs,
        tunes_kernels=tune_kernels,
        kv_cache_dtype=kv_cache_dtype,
        cache_dir=cache_dir or default_cache_dir(),
        pins_threads=pin_threads,
        max_sequences=max(counts),
    )
    try:
        host = build_engine(settings)
    except ModelError as error:
        raise UsageError(str(error)) from None
    run = ProfileRun(host.engine, host.model.tokenizer.vocab_size, host.computation)
    run.run(RunShape(counts[-1], counts[-1], answer_tokens=8))  # thrown away
    for count in counts:
        budget = run.run(RunShape(count, 2 * count))
        if json_output:
            print(json.dumps({"sequences": count, **as_json(budget)}), flush=True)
        else:
            print(f"\n{count} at a time: " + "\n".join(as_lines(budget)), flush=True)


def parse_counts(text: str) -> list[int]:
    """``1,4,16,32``, in order; raises UsageError for what is no such list."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and 1 <= int(part) <= 4096 for part in parts):
        raise UsageError(f"--sequences {text!r}: give numbers from 1 to 4096", hint="--sequences 1,4,16,32")
    return sorted({int(part) for part in parts})
