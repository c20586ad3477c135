"""Steps replayed from graphs: a shape that keeps coming is captured once, and then costs one launch.

A step's shape is padded to a bucket (``Bucket``), so that few graphs serve all batches. The first times a
bucket is met its launches are made one by one, which also compiles what is not compiled yet; then they are
recorded, which runs nothing, and from then on replayed. Buckets that are known to come are recorded while the
model is loaded (``expected_buckets``).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeAlias, TypeVar

import torch

from headway.engine.errors import ModelError
from headway.engine.start_memory import is_out_of_memory

Replay: TypeAlias = Callable[[], None]
BucketT = TypeVar("BucketT", bound=Hashable)

DECODE_MEETINGS = 2
"""Runs of a decode's bucket before it is recorded: libraries set up in the first what no graph may hold."""

MIXED_MEETINGS = 8
"""The same with a prefill chunk: there are more of them, and recording stalls the steps for some 0.1 s."""

MOST_GRAPHS = 320
"""Kept; the one used longest ago goes first. Each takes a few MB beside what they share."""


class GraphMaker(Protocol):
    """What can record launches."""

    def capture(self, work: Callable[[], None]) -> Replay:
        """Record what ``work`` launches, without running it, as something that runs it."""
        ...


class CudaGraphs:
    """CUDA graphs, which share one pool of memory: they never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], None]) -> Replay:
        """ModelError: the device refuses. For want of memory its own error: graphs are not to blame."""
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads of a worker may use the driver meanwhile: only this thread's calls are recorded.
            with (
                torch.cuda.device(self._device),
                torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"),
            ):
                work()
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            raise ModelError(
                f"a step cannot be captured as a CUDA graph: {error}; start with --no-cuda-graphs"
            ) from error
        return graph.replay


class StepGraphs(Generic[BucketT]):
    """Runs the work of steps, by their buckets. ``maker`` None: always launch by launch."""

    def __init__(self, maker: GraphMaker | None, *, most: int = MOST_GRAPHS) -> None:
        self._maker = maker
        self._most = most
        self._meetings: dict[BucketT, int] = {}
        self._replays: OrderedDict[BucketT, Replay] = OrderedDict()

    def __len__(self) -> int:
        """Graphs that are kept."""
        return len(self._replays)

    @property
    def are_used(self) -> bool:
        """Whether anything is ever recorded."""
        return self._maker is not None

    def expect(self, bucket: BucketT, work: Callable[[], None]) -> None:
        """Have the bucket's graph before a step needs it; ``work`` must change nothing that counts."""
        for _ in range(1 if self._maker is None else DECODE_MEETINGS):
            work()
        self._meetings[bucket] = DECODE_MEETINGS
        if self._maker is not None:
            self._keep(bucket, self._maker.capture(work))

    def run(self, bucket: BucketT, work: Callable[[], None], *, meetings: int) -> None:
        """Run ``work``, which must do the same for every step of its bucket, ``meetings`` times itself."""
        replay = self._replays.get(bucket)
        if replay is None:
            met = self._meetings.get(bucket, 0)
            if self._maker is None or met < meetings:
                work()
                self._meetings[bucket] = met + 1  # counted only once it has run: it may raise
                return
            replay = self._maker.capture(work)
            self._keep(bucket, replay)
        self._replays.move_to_end(bucket)
        replay()

    def forget(self, is_void: Callable[[BucketT], bool]) -> None:
        """Drop graphs whose memory has moved; each is recorded again when its bucket is met next."""
        for bucket in [bucket for bucket in self._replays if is_void(bucket)]:
            del self._replays[bucket]

    def _keep(self, bucket: BucketT, replay: Replay) -> None:
        self._replays[bucket] = replay
        if len(self._replays) > self._most:
            self._replays.popitem(last=False)
