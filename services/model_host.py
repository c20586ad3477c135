"""Loads what a worker serves: model files, a runner, the engine around it, and its side of translation."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headway.engine.engine import Engine
from headway.engine.interfaces import Runner, Tokenizer
from headway.engine.limits import StepLimits
from headway.engine.memory import RECOMPUTE_ONLY
from headway.engine.memory_settings import MemorySettings
from headway.engine.scripted import ByteTokenizer
from headway.engine.swap_costs import measure_swap_costs
from headway.engine.values import Objective
from headway.services.accelerated import load_accelerated, without_kernels
from headway.services.answer_formats import reasoning_format, settled, tool_format
from headway.services.device_sizes import DeviceSizes
from headway.services.errors import UsageError
from headway.services.memory import read_memory
from headway.services.placement import Placement, place
from headway.services.policies import limits_for, make_policy
from headway.services.settings import WorkerSettings, served_name
from headway.services.shared_prefixes import read_shared_prefixes
from headway.services.toy_model import is_toy, parse_toy, toy_runner
from headway.services.translate import ModelSide

if TYPE_CHECKING:
    from headway.engine.pool_pages import PoolPages  # needs torch

LARGEST_DEFAULT_KV_BYTES: Final = 2 << 30
"""On a CPU the memory belongs to others too; whoever owns the machine can ask for more."""
SWITCH_SECONDS: Final = 1e-4
"""How soon Python's threads take turns in a worker that looks ahead. By its default of 5 ms the runner's
thread starts a step only when the engine's has told the last one, and nothing overlaps (decision 0017)."""
MOST_CHOICES: Final = 16
"""``n`` of the job contract: a claimed job may bring this many requests."""


@dataclass(frozen=True, slots=True)
class ModelHost:
    """A loaded model. ``engine`` belongs to one thread, ``model`` may be used by any."""

    engine: Engine
    model: ModelSide
    loaded_unix: int
    kernels: str
    """What computes a step, in words: native code with its weights, or torch and why."""
    weights: str
    """Why they have their form, and where they are."""
    placement: Placement
    sizes: DeviceSizes
    tool_format: str = ""
    reasoning_format: str = ""
    """How it writes calls and thoughts, for the worker's card."""
    pages: PoolPages | None = None
    """Of its KV pool, to be provided ahead; None: there is nothing to do."""

    @property
    def computation(self) -> dict[str, str]:
        """What computes, in words."""
        return {"kernels": self.kernels, "threads": str(self.placement), "weights": self.weights}


def build_engine(settings: WorkerSettings) -> ModelHost:
    """Load the model; takes seconds. Raises ModelError or UsageError that says what to change."""
    if settings.looks_ahead and settings.speculation != "off":
        raise UsageError(
            "--look-ahead plans a step before the tokens are known that --speculation guesses from",
            hint="give one of the two",
        )
    policy = make_policy(
        settings.policy,
        settings.fair,
        max_sequences=settings.max_sequences,
        batch_window_seconds=settings.batch_window_seconds,
    )
    placement = place(settings.threads, os.sched_getaffinity(0), is_pinned=settings.pins_threads)
    loaded = _toy(settings) if is_toy(settings.model) else _torch(settings, placement)
    runner, tokenizer = loaded.runner, loaded.tokenizer
    objectives = class_objectives(settings)
    try:
        limits = StepLimits(
            max_step_tokens=settings.max_batch_tokens,
            max_sequences=settings.max_sequences,
            # What the claim loop lets in, each with as many choices as a job may ask for.
            max_waiting=2 * settings.max_sequences * MOST_CHOICES,
            objectives=objectives,
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    swaps = measure_swap_costs(runner)
    memory = MemorySettings(
        has_prefix_cache=settings.has_prefix_cache,
        shared_prefixes=read_shared_prefixes(settings.shared_prefixes, tokenizer),
        is_overcommitted=settings.is_overcommitted,
        costs=swaps or RECOMPUTE_ONLY,
    )
    if settings.looks_ahead:
        sys.setswitchinterval(SWITCH_SECONDS)
    engine = Engine(
        runner,
        tokenizer,
        limits=limits_for(settings.policy, limits),
        policy=policy,
        memory=memory,
        looks_ahead=settings.looks_ahead,
        max_draft_tokens=settings.guessed_tokens,
        clock=time.perf_counter,
    )
    for tenant, weight in settings.tenant_weights:
        engine.set_weight(tenant, weight)
    name = served_name(settings.model, settings.served_name)
    side = ModelSide(name, tokenizer, runner.max_model_len, engine.check)
    template = tokenizer.chat_template
    return ModelHost(
        engine,
        side,
        int(time.time()),
        loaded.kernels,
        loaded.weights,
        placement,
        DeviceSizes.of(runner, swaps),
        tool_format=settled(settings.tool_format, tool_format(template)),
        reasoning_format=settled(settings.reasoning_format, reasoning_format(template)),
        pages=loaded.pages,
    )


def class_objectives(settings: WorkerSettings) -> tuple[Objective, ...]:
    """What jobs without an objective of their own should meet, by class; raises UsageError."""
    if (settings.ttft_seconds is None) != (settings.tpot_seconds is None):
        raise UsageError("--ttft and --tpot belong together", hint="give both, or neither")
    if settings.ttft_seconds is None or settings.tpot_seconds is None:
        return ()
    return (Objective(settings.ttft_seconds, settings.tpot_seconds),)


def default_kv_cache_bytes() -> int:
    """The smaller of 2 GiB and a quarter of the memory that is free now."""
    return min(LARGEST_DEFAULT_KV_BYTES, read_memory().available_bytes // 4)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """What was loaded, and two things about it in words."""

    runner: Runner
    tokenizer: Tokenizer
    kernels: str
    weights: str
    pages: PoolPages | None = None


def _toy(settings: WorkerSettings) -> _Loaded:
    if settings.tensor_parallel > 1:
        raise UsageError(
            "--tensor-parallel is for models", hint="the toy model computes nothing: leave it out"
        )
    return _Loaded(toy_runner(parse_toy(settings.model)), ByteTokenizer(), "none: the toy model", "none")


def _torch(settings: WorkerSettings, placement: Placement) -> _Loaded:
    # Imported here: the toy and the command line start without torch. And in this order: a model
    # that is not there is told before torch has been loaded, which takes seconds.
    from headway.engine.model_source import resolve_model

    source = resolve_model(settings.model)
    import torch

    from headway.engine.checkpoint import open_checkpoint
    from headway.engine.cpu_kernels import CpuSettings
    from headway.engine.torch_runner import TorchRunner

    device = settings.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    accelerated = load_accelerated(
        settings,
        source.path,
        torch.device(device),
        threads=placement.threads,
        default_kv_bytes=default_kv_cache_bytes(),
    )
    checkpoint = open_checkpoint(source.path)
    if accelerated is not None:
        return _Loaded(accelerated.runner, checkpoint.tokenizer(), accelerated.kernels, "in memory")
    on_gpu = without_kernels(torch.device(device))
    if (form := settings.quantization) == "fp8" or form == "int8-w8a8" or form == "fp8-w8a8":  # noqa: PLR1714  # narrows
        raise UsageError(
            f"--quantization {form} is for GPUs{on_gpu}",
            hint="here take auto; on a CPU int8, q4 or q4-int8 too",
        )
    if (kv := settings.kv_cache_dtype) == "fp8":
        raise UsageError(
            f"--kv-cache-dtype fp8 is for GPUs{on_gpu}", hint="here take auto; on a CPU int8 too"
        )
    if on_gpu and (form not in {"none", "auto"} or kv not in {"bf16", "auto"}):
        raise UsageError(
            f"--quantization {form} --kv-cache-dtype {kv} need a GPU{on_gpu}",
            hint="here take auto for both, or --device cpu",
        )
    kv_cache_bytes = settings.kv_cache_bytes or default_kv_cache_bytes()
    runner = TorchRunner.load(
        checkpoint,
        kv_cache_bytes=kv_cache_bytes,
        host_cache_bytes=settings.host_cache_bytes,
        dtype=settings.dtype,
        device=device,
        block_size=settings.block_size,
        threads=placement.threads,
        max_model_len=settings.max_model_len,
        available_bytes=read_memory().available_bytes if device == "cpu" else None,
        cpu=CpuSettings(
            settings.cpu_kernels,
            form,
            settings.cache_dir,
            keeps_weights=settings.keeps_weights,
            cores=placement.cores,
            kv_cache_dtype=kv,
        ),
        is_deterministic=settings.is_deterministic,
    )
    words = f"{runner.kernels} on a GPU{on_gpu}" if on_gpu else runner.kernels
    return _Loaded(runner, checkpoint.tokenizer(), words, runner.weights, runner.pages)
