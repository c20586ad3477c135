"""``headway profile`` on the command line."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from headway.services import cli_engine_options as engine_options
from headway.services import cli_options as options
from headway.services.errors import UsageError
from headway.services.given_options import refuse_ignored, was_typed
from headway.services.settings import WorkerSettings, default_cache_dir

if TYPE_CHECKING:
    from collections.abc import Sequence

OF_THE_ENGINE: Final = (
    *("sequences", "decode_only", "context_tokens", "model", "dtype", "device", "threads", "cpu_kernels"),
    *("quantization", "tensor_parallel", "cuda_graphs", "tune_kernels", "kv_cache_dtype"),
    *("cache_dir", "pin_threads"),
)
"""Parameters of the engine that is run here, where no worker is looked at."""
_WORKER = WorkerSettings()


def add_profile_command(app: typer.Typer) -> None:
    """Add the command to the ``headway`` command."""
    app.command()(profile)


def profile(
    context: typer.Context,
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
    decode_only: Annotated[
        bool,
        typer.Option(
            "--decode-only", help="Nothing but decodes: each step brings one token to each of the sequences."
        ),
    ] = False,
    context_tokens: Annotated[
        int,
        typer.Option("--context", min=40, metavar="TOKENS", help="Of each sequence with --decode-only."),
    ] = 225,
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

    Of a live worker, or of an engine that is run here on prompts of 180 tokens and answers of 94, or on
    decodes alone.
    """
    if url is not None:
        refuse_ignored(
            context,
            OF_THE_ENGINE,
            f"the steps are those of the worker at {url}, as it was started",
            None if was_typed(context, "url") else "to run an engine here, unset HEADWAY_METRICS_URL",
        )
        _show_worker(url, seconds, is_json=json_output)
        return
    refuse_ignored(context, ["seconds"], "no worker's URL is given: an engine runs here until it is done")
    if not decode_only:
        refuse_ignored(
            context, ["context_tokens"], "prompts and answers have their own lengths", "--decode-only"
        )
    counts = parse_counts(sequences)
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
    _run_engine(settings, counts, context_tokens if decode_only else None, is_json=json_output)


def _show_worker(url: str, seconds: float, *, is_json: bool) -> None:
    """What a worker's time went to, in the seconds that come."""
    from headway.services.profile import as_json, as_lines, between, read_worker

    before = read_worker(url, time.monotonic())
    time.sleep(seconds)
    budget = between(before, read_worker(url, time.monotonic()))
    print(json.dumps(as_json(budget)) if is_json else "\n".join(as_lines(budget)))


def _run_engine(
    settings: WorkerSettings, counts: Sequence[int], context_tokens: int | None, *, is_json: bool
) -> None:
    """A budget for each count, of an engine in this process; ``context_tokens``: of decodes alone."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is loaded, as `headway worker` does

    from headway.engine.errors import ModelError, RequestError
    from headway.services.collector import look_for_cycles_seldom
    from headway.services.model_host import build_engine
    from headway.services.profile import as_json, as_lines
    from headway.services.profile_run import DecodeShape, ProfileRun, RunShape

    look_for_cycles_seldom()  # as a worker does
    try:
        host = build_engine(settings)
    except ModelError as error:
        raise UsageError(str(error)) from None
    run = ProfileRun(host.engine, host.model.tokenizer.vocab_size, host.computation)
    run.run(RunShape(counts[-1], counts[-1], answer_tokens=8))  # thrown away
    for count in counts:
        try:
            budget = (
                run.run(RunShape(count, 2 * count))
                if context_tokens is None
                else run.decode(DecodeShape(count, context_tokens))
            )
        except RequestError as error:
            raise UsageError(str(error), hint="a shorter --context" if context_tokens else None) from None
        if is_json:
            print(json.dumps({"sequences": count, **as_json(budget)}), flush=True)
        else:
            print(f"\n{count} at a time: " + "\n".join(as_lines(budget)), flush=True)


def parse_counts(text: str, option: str = "--sequences") -> list[int]:
    """``1,4,16,32``, in order; raises UsageError, in the option's name, for what is no such list."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and 1 <= int(part) <= 4096 for part in parts):
        raise UsageError(f"{option} {text!r}: give numbers from 1 to 4096", hint=f"{option} 1,4,16,32")
    return sorted({int(part) for part in parts})
