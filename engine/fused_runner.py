"""Runs plans with the GPU's kernels: one copy up, one graph, one copy down, and no wait between steps.

    host     pack N+1 ─► copy up ─► launch ······ read N ─► pack N+2 ─► …        ``launch`` and ``collect``
    device   ═══ N ═══════════════╪═══════════ N+1 ═══════════╪═══ N+2 …          one stream, in order
    copies   ── swaps of N ──────────── swaps of N+1 ──                           a stream of their own

A token that N chooses and N+1 reads stays on the device: a ``PLACEHOLDER`` names it by its row. So N+1 can be
launched before anybody on the host has seen what N chose. ``execute`` is both halves at once.

The same code runs on CPU tensors where Triton interprets its kernels, with or without something in place of
CUDA's graphs; that is how tests run it.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from headway.engine.copy_bus import CudaBus
from headway.engine.errors import InvariantError
from headway.engine.fused_masks import FusedMasks
from headway.engine.fused_model import FusedModel
from headway.engine.fused_places import FusedPlaces
from headway.engine.fused_request import FusedRequest, FusedRequests
from headway.engine.fused_results import ChosenRows, FusedRow, LaunchedStep, chosen_rows, rows_of
from headway.engine.fused_sampler import FusedSampler
from headway.engine.fused_step import Bucket, PackedStep, fused_inputs, pack_fused
from headway.engine.host_cache import HostCache
from headway.engine.kv_cache import KVCache
from headway.engine.model_config import ModelConfig
from headway.engine.model_tiles import ChosenTiles
from headway.engine.pooled_runner import PooledRunner
from headway.engine.step_buffers import PIECES, mark
from headway.engine.step_graphs import DECODE_MEETINGS, MIXED_MEETINGS, GraphMaker, StepGraphs
from headway.engine.values import (
    PLACEHOLDER,
    Chunk,
    ComputeTimes,
    RequestKey,
    StepPlan,
    StepResult,
)
from headway.kernels.attention_plan import AttentionShape
from headway.kernels.launch import Chip


class FusedRunner(PooledRunner):
    """A ``LaunchingRunner`` for one model on one GPU. Single-threaded; ``load_fused_runner`` makes one."""

    def __init__(
        self,
        config: ModelConfig,
        model: FusedModel,
        cache: KVCache,
        shape: AttentionShape,
        chip: Chip,
        *,
        max_model_len: int,
        clock: Callable[[], float] = time.perf_counter,
        host_slots: int = 0,
        graphs: GraphMaker | None = None,
        kernels: str = "triton",
        kv_number: torch.dtype | None = None,
        is_deterministic: bool = False,
    ) -> None:
        """``kv_number``: what a cache of eight bits holds. ``is_deterministic``: as the model is."""
        self.kernels = kernels
        """What computes, in words: for the log."""
        self.tiles = ChosenTiles()
        """Which of its kernels' tiles were measured: for the log."""
        bus = CudaBus(shape.device) if shape.device.type == "cuda" and host_slots else None
        host = HostCache(cache, host_slots, clock, bus)
        super().__init__(config, cache, host, dtype=shape.dtype, max_model_len=max_model_len)
        self._model = model
        self._shape = shape
        self._chip = chip
        self._pools = cache.paged(kv_number)
        self._is_deterministic = is_deterministic
        self._clock = clock
        self._sampler = FusedSampler(
            config.vocab_size, config.eos_token_ids, shape.device, chip, is_deterministic=is_deterministic
        )
        self._waiting_logits = FusedMasks(config.vocab_size, shape.device)
        self._places = FusedPlaces(shape.device, self._sampler)
        self._graphs = StepGraphs[Bucket](graphs)
        self._results = [self._result() for _ in range(PIECES)]
        self._requests = FusedRequests(max_model_len, cache.block_size)
        self._launched: deque[LaunchedStep] = deque()
        self._next_piece = 0
        self._chosen_rows: dict[tuple[RequestKey, int], int] = {}
        """By request and position: the row that the step launched last chooses the token in."""
        self._collected_at = -math.inf

    @property
    def graph_count(self) -> int:
        """Buckets that are replayed from graphs."""
        return len(self._graphs)

    def launch(self, plan: StepPlan) -> None:
        """Give the device one more step; two at most are under way. InvariantError: nothing was launched."""
        if len(self._launched) == PIECES:
            raise InvariantError(f"{PIECES} steps are under way: collect one before the next is launched")
        started = self._clock()
        with self._computing():
            self._launch(plan, started)

    def collect(self) -> StepResult:
        """Wait for the step that was launched first."""
        if not self._launched:
            raise InvariantError("no step is under way")
        step = self._launched.popleft()
        with self._computing():
            step.arrived()
            result = self._results[step.piece]
            sampled = result.read(step.plan.chunks, step.rows, has_logprobs=step.has_logprobs)
            copied_step = self._host.copied_step(step.plan.step, wait=not step.plan.chunks)
        now = self._clock()
        # While the step before ran, this one waited for it.
        elapsed = now - max(step.started, self._collected_at)
        self._collected_at = now
        packing = min(elapsed, max(0.0, step.launched - step.started))
        times = ComputeTimes(elapsed - packing, 0.0) if step.plan.chunks else None
        return StepResult(step.plan.step, sampled, elapsed, copied_step, self._host.take_times(), times)

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step to its end; results of steps under way are thrown away, as after a failure."""
        while self._launched:
            self._launched.popleft().arrived()
        self.launch(plan)
        return self.collect()

    def expect(self, buckets: Sequence[Bucket], *, most_rows: int = 0) -> None:
        """Compile and record before anybody waits: each runs with padding alone, which changes nothing.

        Buckets that are not kept are compiled only. No step may be under way. ``most_rows``: of any step.
        """
        with self._computing():
            self._waiting_logits.compile()
            # For all of them at once, and for later ones: room that grew would void the graphs before.
            widest = max(buckets, key=lambda bucket: bucket.rows)
            self._make_room(replace(widest, rows=max(widest.rows, most_rows)), penalised_rows=1)
            for bucket in buckets:
                placed, placement = self._places.place(bucket, 0)
                placement.upload(0, placement.nothing)
                work = self._work(placed, placement.on_device)
                if placed.is_kept:
                    self._graphs.expect(placed, work)
                else:
                    work()
                mark(self._shape.device)()  # the pinned memory is written again

    def await_copies(self, step: int) -> None:
        """Return when the swaps of plans up to this step are complete, whatever was seen of them before."""
        with self._computing():
            self._host.wait(step)

    def logits(self, plan: StepPlan) -> Tensor:
        """Run one step; return the raw logits [new tokens, vocab] of every new token, in the plan's order."""
        with self._computing():
            requests = self._announced(plan)
            packed = self._pack(plan.chunks, requests, [c.token_ids for c in plan.chunks], all_logits=True)
            bucket = packed.bucket(has_graphs=False)
            _, placement = self._places.place(bucket, packed.lines)
            placement.upload(0, {**packed.content, **self._sampler.content(bucket, ())})
            inputs = fused_inputs(bucket, placement.on_device, self._shape)
            return self._model.forward(inputs, self._pools, self._sampler.chosen.tokens)

    def _launch(self, plan: StepPlan, started: float) -> None:
        requests = self._announced(plan)
        token_ids = [self._named(chunk) for chunk in plan.chunks]
        self._host.move(plan)
        rows: list[FusedRow] = []
        for request, chunk in zip(requests, plan.chunks, strict=True):
            request.learn(chunk)
            rows += rows_of(request, chunk)
        piece, has_logprobs = self._next_piece, False
        self._chosen_rows = {}
        if plan.chunks:
            has_logprobs = self._compute(plan.chunks, requests, token_ids, rows, piece)
            self._chosen_rows = chosen_rows(plan.chunks)
        self._next_piece = (piece + 1) % PIECES
        ended = mark(self._shape.device)
        self._launched.append(
            LaunchedStep(plan, tuple(rows), has_logprobs, piece, ended, started, self._clock())
        )

    def _announced(self, plan: StepPlan) -> list[FusedRequest]:
        """The chunks' requests, after what the plan says of who comes and goes."""
        for gone in self._requests.update(plan.released, plan.admitted, self.grammars):
            self._sampler.forget(gone)
        return [self._requests.of(chunk) for chunk in plan.chunks]

    @contextmanager
    def _computing(self) -> Generator[None]:
        """On this runner's GPU, whichever thread calls, and without a record for gradients."""
        device = self._shape.device
        with torch.inference_mode(), torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            yield

    def _compute(
        self,
        chunks: Sequence[Chunk],
        requests: Sequence[FusedRequest],
        token_ids: Sequence[Sequence[int]],
        rows: Sequence[FusedRow],
        piece: int,
    ) -> bool:
        """Launch model and sampling, and fetch what they choose; whether with log-probabilities."""
        packed = self._pack(chunks, requests, token_ids)
        bucket = self._sampler.extend(packed.bucket(has_graphs=self._graphs.are_used), rows)
        self._make_room(bucket, sum(row.request.known is not None for row in rows))
        bucket, placement = self._places.place(bucket, packed.lines)
        placement.upload(piece, {**packed.content, **self._sampler.content(bucket, rows)})
        arrays = placement.on_device
        work = self._work(bucket, arrays)
        if bucket.is_kept:
            meetings = DECODE_MEETINGS if bucket.is_decode else MIXED_MEETINGS
            self._graphs.run(bucket, work, meetings=meetings)
        else:
            work()
        if bucket.is_masked:
            self._choose_masked(bucket, arrays, rows, piece)
        if self._results[piece].room != self._sampler.chosen.room:
            self._results[piece] = self._result()
        self._results[piece].copy_from(self._sampler.chosen, bucket)
        return bucket.top_logprobs is not None

    def _work(self, bucket: Bucket, arrays: Mapping[str, Tensor]) -> Callable[[], None]:
        """What a step of the bucket launches, the same every time; a masked one's choice comes after it."""
        inputs = fused_inputs(bucket, arrays, self._shape)

        def work() -> None:
            logits = self._model.forward(inputs, self._pools, self._sampler.chosen.tokens)
            if bucket.is_masked:
                self._waiting_logits.keep(logits)
            elif bucket.rows:
                self._sampler.choose(logits, bucket, arrays)

        return work

    def _make_room(self, bucket: Bucket, penalised_rows: int) -> None:
        """Have memory for a step; graphs of what it moves are void, and no others."""
        if self._sampler.make_room(bucket.rows, bucket.top_logprobs or 0):
            self._graphs.forget(lambda _: True)
        if self._sampler.make_count_room(penalised_rows):
            self._graphs.forget(lambda kept: kept.is_penalised)
        if bucket.is_masked and self._waiting_logits.make_room(bucket.rows):
            self._graphs.forget(lambda kept: kept.is_masked)

    def _choose_masked(
        self, bucket: Bucket, arrays: Mapping[str, Tensor], rows: Sequence[FusedRow], piece: int
    ) -> None:
        """Launch the choice of a step whose forward pass is under way."""
        assert self._masks is not None, "a grammar was announced to a runner without any"
        for step in self._launched:  # what the step before has chosen comes before what this one may
            step.arrived()
            self._results[step.piece].read(step.plan.chunks, step.rows, has_logprobs=False)
        logits = self._waiting_logits.masked(bucket.rows, rows, self._masks, piece)
        self._sampler.choose(logits, bucket, arrays)

    def _pack(
        self,
        chunks: Sequence[Chunk],
        requests: Sequence[FusedRequest],
        token_ids: Sequence[Sequence[int]],
        *,
        all_logits: bool = False,
    ) -> PackedStep:
        return pack_fused(
            chunks,
            [request.table(chunk.block_table) for request, chunk in zip(requests, chunks, strict=True)],
            token_ids,
            self._shape,
            self._chip,
            all_logits=all_logits,
            deterministic=self._is_deterministic,
        )

    def _result(self) -> ChosenRows:
        rows, top = self._sampler.chosen.room
        is_pinned = self._shape.device.type == "cuda"
        return ChosenRows.make(rows, top, torch.device("cpu"), pinned=is_pinned)

    def _named(self, chunk: Chunk) -> Sequence[int]:
        """The chunk's tokens; one that only the device knows by the row that chose it."""
        if chunk.token_ids != (PLACEHOLDER,):
            return chunk.token_ids
        row = self._chosen_rows.get((chunk.key, chunk.start))
        if row is None:
            raise InvariantError(f"{chunk.key}: the step before sampled no token for position {chunk.start}")
        return (-1 - row,)
