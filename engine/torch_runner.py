"""Runs plans on a torch device: packs chunks, runs the model, samples, remembers what requests asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headway.engine.answer import Answer, keep_right
from headway.engine.checkpoint import Checkpoint
from headway.engine.chunk_checks import check_chunk
from headway.engine.compute_dtype import compute_dtype
from headway.engine.copy_bus import CudaBus
from headway.engine.cpu_kernels import CpuSettings, choose_computation
from headway.engine.deterministic import RowByRowSampler, check_deterministic, mark_of
from headway.engine.drafts import has_drafts
from headway.engine.host_cache import HostCache
from headway.engine.kv_cache import KVCache, block_bytes, block_count_within
from headway.engine.last_step import LastStep
from headway.engine.memory_check import check_memory
from headway.engine.model_config import ModelConfig
from headway.engine.native_loading import load_native_model, settle, window_bytes
from headway.engine.native_model import NativeModel
from headway.engine.native_weights import native_weight_bytes
from headway.engine.pooled_runner import PooledRunner
from headway.engine.quantization_check import WINDOW
from headway.engine.rope import rotary_tables
from headway.engine.sampler import Sampler, SamplingRow, masked, rows_of
from headway.engine.step_inputs import StepInputs, pack
from headway.engine.torch_model import TorchModel
from headway.engine.torch_weights import load_weights, weight_bytes
from headway.engine.values import (
    Admitted,
    Chunk,
    ComputeTimes,
    RequestKey,
    Sampled,
    StepPlan,
    StepResult,
)
from headway.engine.warm_up import warm_up
from headway.kernels.attention_plan import AttentionShape

TORCH_ONLY = CpuSettings(kernels="torch")


class TorchRunner(PooledRunner):
    """A ``Runner`` for one model on one device. Single-threaded; ``load`` makes one."""

    def __init__(
        self,
        config: ModelConfig,
        model: TorchModel | NativeModel,
        cache: KVCache,
        *,
        dtype: torch.dtype,
        device: torch.device,
        max_model_len: int,
        clock: Callable[[], float],
        host_slots: int = 0,
        kernels: str = "torch",
        is_deterministic: bool = False,
        weights: str = "in memory",
    ) -> None:
        self.kernels = kernels
        """What computes, in words: for the log."""
        self.weights = weights
        """Why the weights have their form, and where they are, in words: for the log."""
        bus = CudaBus(device) if device.type == "cuda" and host_slots else None
        host = HostCache(cache, host_slots, clock, bus)
        super().__init__(config, cache, host, dtype=dtype, max_model_len=max_model_len)
        self._model = model
        self._clock = clock
        make_sampler = RowByRowSampler if is_deterministic else Sampler
        self._sampler = make_sampler(config.vocab_size, config.eos_token_ids)
        self._answers: dict[str, Answer] = {}
        self._last = LastStep()
        self._shape = AttentionShape(
            query_heads=config.query_head_count,
            kv_heads=config.kv_head_count,
            head_dim=config.head_dim,
            block_size=cache.block_size,
            sliding_window=config.sliding_window,
            dtype=dtype,
            device=device,
        )

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        *,
        kv_cache_bytes: int,
        host_cache_bytes: int = 0,
        dtype: str = "auto",
        device: str = "cpu",
        block_size: int = 16,
        threads: int | None = None,
        max_model_len: int | None = None,
        available_bytes: int | None = None,
        cpu: CpuSettings = TORCH_ONLY,
        is_deterministic: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> TorchRunner:
        """Load, lay out and warm up a model.

        ``host_cache_bytes``: host memory for swapped requests; 0: never swap. ``max_model_len`` lowers the
        model's own limit. ``available_bytes``: memory that may be taken on the
        device; None: do not check. ``threads``: torch's for this process; None: as they are. ``cpu``: native
        kernels and their weights, on a CPU. ``is_deterministic``: nobody's company changes a bit of an answer
        (``deterministic``). Raises ModelError, saying what to change.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        config, place = checkpoint.config, torch.device(device)
        number = compute_dtype(dtype, place, torch.cpu.get_capabilities())
        chosen = choose_computation(cpu, config, dtype=number, device=place, block_size=block_size)
        if is_deterministic:
            check_deterministic(chosen, place)
        settled = settle(
            cpu,
            chosen,
            checkpoint,
            number,
            lambda form: cls.load(
                checkpoint,
                kv_cache_bytes=window_bytes(config, block_size, number),
                dtype="bfloat16",
                block_size=block_size,
                max_model_len=WINDOW,
                available_bytes=available_bytes,
                cpu=replace(
                    cpu,
                    quantization=form.quantization,
                    kv_cache_dtype=form.kv_cache_dtype,
                    keeps_weights=False,
                ),
            ),
            block_size=block_size,
            is_deterministic=is_deterministic,
        )
        cpu, kv = settled.cpu, settled.kv
        blocks = block_count_within(config, kv_cache_bytes=kv_cache_bytes, block_size=block_size, dtype=kv)
        weight_size = (
            weight_bytes(config, number)
            if chosen.library is None
            else native_weight_bytes(config, cpu.quantization, number)
        )
        kv_bytes = blocks * block_bytes(config, block_size, kv)
        check_memory(weight_size, number, kv_bytes, available_bytes)
        limit = min(config.max_position, max_model_len or config.max_position, blocks * block_size)
        with torch.inference_mode():
            cache = KVCache(config, block_count=blocks, block_size=block_size, dtype=kv, device=place)
            model: TorchModel | NativeModel
            if chosen.library is None:
                tables = rotary_tables(config.rope, config.head_dim, limit, number, place)
                model = TorchModel(config, load_weights(checkpoint, number, place), tables)
                kernels, weights = f"torch ({chosen.reason})", "in memory"
            else:
                loaded = load_native_model(
                    chosen.library,
                    checkpoint,
                    cache,
                    cpu,
                    positions=limit,
                    dtype=number,
                    reason=settled.reason,
                )
                model, kernels, weights = loaded.model, loaded.kernels, loaded.weights
        runner = cls(
            config,
            model,
            cache,
            dtype=number,
            device=place,
            max_model_len=limit,
            clock=clock,
            host_slots=host_cache_bytes // block_bytes(config, block_size, kv),
            kernels=kernels,
            is_deterministic=is_deterministic,
            weights=weights,
        )
        runner.hold_to_grammars(checkpoint.tokenizer, threads=torch.get_num_threads())
        warm_up(runner)
        if is_deterministic:
            runner.kernels += f", deterministic {mark_of(runner)}"
        return runner

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step to its end. InvariantError: a chunk that no honest plan holds; nothing ran then."""
        started, model = self._clock(), self._model
        if isinstance(model, NativeModel) and plan.chunks:
            model.wake()  # its threads get ready while the inputs are packed
            if self._is_plain(plan):
                return self._decode(plan, model, started)
        return self._execute(plan, started)

    def _is_plain(self, plan: StepPlan) -> bool:
        """Whether all that a step does is to bring requests that are known their most likely tokens."""
        if plan.admitted or plan.released or plan.has_copies or not self._host.is_idle:
            return False
        for chunk in plan.chunks:
            answer = self._answers.get(chunk.key.request_id)
            if answer is None or not answer.is_plain or len(chunk.token_ids) != 1 or not chunk.samples:
                return False
        return True

    def _decode(self, plan: StepPlan, model: NativeModel, started: float) -> StepResult:
        """What ``_execute`` does with a plain step, without what it has no use for: torch, rows of sampling
        parameters, copies. Of a short step that is a good part."""
        chunks = self._last.fill(plan.chunks)
        answers = [self._answer(chunk) for chunk in chunks]
        packed = self._clock()
        sampled = model.decode(chunks, answers)
        ended = self._clock()
        self._last.remember(chunks, sampled)
        times = _compute_times(model, ended - packed)
        return StepResult(plan.step, sampled, ended - started, copied_step=plan.step, times=times)

    @torch.inference_mode()
    def _execute(self, plan: StepPlan, started: float) -> StepResult:
        if self._masks is not None:
            self._masks.settle()
        self._update(plan.released, plan.admitted)
        chunks = self._last.fill(plan.chunks)
        answers = [self._answer(chunk) for chunk in chunks]
        self._host.move(plan)
        for answer, chunk in zip(answers, chunks, strict=True):
            answer.learn(chunk)
        rows = masked(
            [r for a, c in zip(answers, chunks, strict=True) if c.samples for r in rows_of(a, c)], self._masks
        )
        sampled: tuple[Sampled, ...] = ()
        times: ComputeTimes | None = None
        if chunks:
            sampled, times = self._choose(chunks, answers, rows)
            if has_drafts(chunks):
                sampled = keep_right(chunks, answers, sampled)
        self._last.remember(chunks, sampled)
        copied_step = self._host.copied_step(plan.step, wait=not chunks)
        elapsed = self._clock() - started
        return StepResult(plan.step, sampled, elapsed, copied_step, self._host.take_times(), times)

    def _choose(
        self, chunks: Sequence[Chunk], answers: Sequence[Answer], rows: Sequence[SamplingRow]
    ) -> tuple[tuple[Sampled, ...], ComputeTimes]:
        started = self._clock()
        if isinstance(self._model, NativeModel):
            sampled = self._model.sample(chunks, answers, rows, self._sampler)
            return sampled, _compute_times(self._model, self._clock() - started)
        logits = self._model.forward(self._pack(chunks, answers), self._cache)
        computed = self._clock()
        sampled = self._sampler.sample(logits, rows) if rows else ()
        return sampled, ComputeTimes(computed - started, self._clock() - computed)

    @torch.inference_mode()
    def logits(self, plan: StepPlan) -> Tensor:
        """Run one step; return the raw logits [new tokens, vocab] of every new token, in the plan's order."""
        self._update(plan.released, plan.admitted)
        answers = [self._answer(chunk) for chunk in plan.chunks]
        if isinstance(self._model, NativeModel):
            return self._model.logits(plan.chunks, answers)
        return self._model.forward(self._pack(plan.chunks, answers, all_logits=True), self._cache)

    def _update(self, released: Sequence[RequestKey], admitted: Sequence[Admitted]) -> None:
        for key in released:
            answer = self._answers.get(key.request_id)
            if answer is not None and answer.key == key:
                del self._answers[key.request_id]
        for newcomer in admitted:
            self._answers[newcomer.key.request_id] = Answer(newcomer, self.grammars)

    def _answer(self, chunk: Chunk) -> Answer:
        answer = self._answers.get(chunk.key.request_id)
        is_announced = answer is not None and answer.key == chunk.key
        check_chunk(
            chunk, is_announced=is_announced, max_model_len=self._max_model_len, block_size=self.block_size
        )
        assert answer is not None
        return answer

    def _pack(
        self, chunks: Sequence[Chunk], answers: Sequence[Answer], *, all_logits: bool = False
    ) -> StepInputs:
        tables: list[NDArray[np.int64]] = [
            answer.table(chunk.block_table) for answer, chunk in zip(answers, chunks, strict=True)
        ]
        return pack(chunks, tables, self._shape, all_logits=all_logits)


def _compute_times(model: NativeModel, seconds: float) -> ComputeTimes:
    """Of a step that took so long: what its own clock does not hold was getting there and choosing."""
    own = model.times
    return ComputeTimes(own.total, max(0.0, seconds - own.total), own.products, own.head, own.attention)
