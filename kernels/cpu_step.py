"""The CPU's whole step as one native call (``cpu/step.h``): all layers, on threads of the library's own.

Keys and values lie in the blocks of the ordinary pools, each (block, head) tile of block_size · head_dim
values (of 8 bits, then their scales) in an order of its own (``cpu/attention.h``); whoever copies whole
blocks need not know it.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor

from headway.kernels.cpu_gemm import Epilogue, PackedWeight, WeightRecord

MANY_TOKENS: Final = 24
"""From here on a product's time is its arithmetic, and with fewer tokens it is reading the weights."""

_ADDRESSES: Final = frozenset({"tables", "masks"})
"""Buffers of addresses; the others hold 32-bit numbers."""

_KV_ELEMENTS = {torch.float32: 0, torch.bfloat16: 1, torch.uint8: 2}
"""``HeadwayElement`` of keys and values; uint8: 8-bit values and their scales."""


class _LayerRecord(ctypes.Structure):
    _fields_ = (
        ("qkv", WeightRecord),
        ("output", WeightRecord),
        ("gate_up", WeightRecord),
        ("down", WeightRecord),
        ("attention_norm", ctypes.c_void_p),
        ("query_norm", ctypes.c_void_p),
        ("key_norm", ctypes.c_void_p),
        ("mlp_norm", ctypes.c_void_p),
    )


class _ModelRecord(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("layers", "hidden", "intermediate", "vocab")),
        *((name, ctypes.c_int32) for name in ("query_heads", "kv_heads", "head_dim", "block_size")),
        ("window", ctypes.c_int32),
        ("activation", ctypes.c_int32),
        ("kv_element", ctypes.c_int32),
        ("norm_eps", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("layer", ctypes.POINTER(_LayerRecord)),
        ("layer_of_many", ctypes.POINTER(_LayerRecord)),
        ("many", ctypes.c_int32),
        ("head", WeightRecord),
        ("embedding", WeightRecord),
        *((name, ctypes.c_void_p) for name in ("final_norm", "cosines", "sines", "pools")),
        ("blocks", ctypes.c_int64),
    )


class _StepRecord(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("sequences", "tokens", "rows", "kept_rows")),
        *((name, ctypes.c_void_p) for name in ("token_ids", "starts", "counts", "tables")),
        *((name, ctypes.c_void_p) for name in ("logit_rows", "masks", "logits", "most_likely")),
        ("nanoseconds", ctypes.c_int64 * 4),
    )


@dataclass(frozen=True, slots=True)
class CpuLayer:
    """Weights of one block; norms are float32, query_norm and key_norm None without q/k norm."""

    qkv: PackedWeight
    output: PackedWeight
    gate_up: PackedWeight
    down: PackedWeight
    attention_norm: Tensor
    query_norm: Tensor | None
    key_norm: Tensor | None
    mlp_norm: Tensor


@dataclass(frozen=True, slots=True)
class CpuModel:
    """All that a step reads and that never changes; tensors are contiguous and stay where they are."""

    query_heads: int
    kv_heads: int
    head_dim: int
    sliding_window: int | None
    activation: Epilogue
    """Of the gated product."""
    norm_eps: float
    embedding: PackedWeight
    layers: tuple[CpuLayer, ...]
    layers_of_many: tuple[CpuLayer, ...]
    """The same for steps of ``MANY_TOKENS`` or more, in a form that computes faster; or none."""
    final_norm: Tensor
    head: PackedWeight
    cosines: Tensor
    """[positions, head_dim / 2] float32, as are the sines."""
    sines: Tensor

    def weight_bytes(self, tokens: int) -> int:
        """Bytes that the products of a step of so many tokens read, the head's among them.

        Norms, rotary tables and the tokens' own rows of the embedding, a thousandth of it, are left out.
        """
        layers = self.layers_of_many if self.layers_of_many and tokens >= MANY_TOKENS else self.layers
        products = [weight for one in layers for weight in (one.qkv, one.output, one.gate_up, one.down)]
        return sum(weight.byte_count for weight in (*products, self.head))


class StepTimes(NamedTuple):
    """Seconds that the last step spent in the layers' products, in attention, in the head, and in all."""

    products: float
    attention: float
    head: float
    total: float


class _Buffer(NamedTuple):
    """What a step reads or writes, and where it lies. Of ctypes: it takes a list of few numbers in a third of
    the time that numpy takes."""

    values: ctypes.Array[Any]
    address: int

    @classmethod
    def of(cls, values: ctypes.Array[Any]) -> _Buffer:
        return cls(values, ctypes.addressof(values))


class CpuStep:
    """One model with its threads on one KV pool. Single-threaded; ``close`` ends the threads."""

    def __init__(
        self,
        library: ctypes.CDLL,
        model: CpuModel,
        pools: Tensor,
        *,
        threads: int,
        cores: Sequence[int] | None = None,
    ) -> None:
        """``pools``: [layers, 2, blocks, kv_heads, block_size, head_dim]; bfloat16, the last two even, or
        float32; or uint8, the last two multiples of 16 and the last one 4 longer, for scales.

        ``cores``: where the threads stay, one for each; None: wherever the system puts them.
        """
        self._kept_alive = (model, pools)
        layers, layers_of_many = _records(model.layers), _records(model.layers_of_many)
        record = _model(model, layers, layers_of_many, pools)
        pinned = None if cores is None else (ctypes.c_int32 * threads)(*cores)
        opened = cast(Callable[..., int | None], _function(library, "headway_open", ctypes.c_void_p))
        context = opened(ctypes.byref(record), threads, pinned)
        if context is None:
            raise MemoryError("no memory for the CPU kernels' threads")
        self._context = ctypes.c_void_p(context)
        self._end = weakref.finalize(self, _function(library, "headway_close", None), self._context)
        self._layers = layers, layers_of_many
        self._run = _function(library, "headway_step", ctypes.c_int32)
        self._wake = _function(library, "headway_wake", None)
        self._record = _StepRecord()
        self._place = ctypes.byref(self._record)
        self._vocab = model.head.outputs
        self._logits = torch.empty(0)
        self._no_logits = torch.empty((0, self._vocab))
        self._buffers: dict[str, _Buffer] = {}

    def wake(self) -> None:
        """A step follows within microseconds: let the threads get ready meanwhile."""
        self._wake(self._context)

    def run(
        self,
        token_ids: Sequence[int],
        starts: Sequence[int],
        counts: Sequence[int],
        tables: Sequence[int],
        rows: Sequence[int],
        kept_rows: int,
        masks: Sequence[int] = (),
    ) -> tuple[list[int], Tensor]:
        """Write the KV of all tokens; (most likely tokens [rows], logits [kept_rows, vocab] float32).

        ``tables``: addresses of int32 block tables, one per sequence, that reach its last token. ``rows``:
        packed tokens whose logits are wanted; only those of the first ``kept_rows`` are kept. ``masks``:
        for each row the address of its bit mask, which lets it choose where a bit is set (little end first);
        0: it may choose anything; none at all: no row has one. What a mask forbids is no row's most likely
        token, and −inf among its logits. The logits are overwritten by the next step.
        """
        record, count = self._record, len(rows)
        record.sequences, record.tokens, record.rows = len(starts), len(token_ids), count
        record.kept_rows = kept_rows
        record.token_ids = self._filled("token_ids", token_ids)
        record.starts = self._filled("starts", starts)
        record.counts = self._filled("counts", counts)
        record.tables = self._filled("tables", tables)
        record.logit_rows = self._filled("rows", rows)
        record.masks = self._filled("masks", masks or (0,) * count)
        record.most_likely = self._filled("most_likely", rows)
        logits = self._no_logits
        if kept_rows:
            if self._logits.shape[0] < kept_rows:
                self._logits = torch.empty((kept_rows, self._vocab))
            logits = self._logits[:kept_rows]
            record.logits = logits.data_ptr()
        if self._run(self._context, self._place) != 0:
            raise MemoryError(f"no memory for a step of {len(token_ids)} tokens")
        return self._buffers["most_likely"].values[:count], logits

    @property
    def times(self) -> StepTimes:
        """Where the last step's time went, as its calling thread saw it."""
        products, attention, head, total = self._record.nanoseconds
        return StepTimes(products * 1e-9, attention * 1e-9, head * 1e-9, total * 1e-9)

    def close(self) -> None:
        """End the threads; nothing can run after that."""
        self._end()

    def _filled(self, name: str, values: Sequence[int]) -> int:
        """The address of a buffer with these values; one is made anew when it is too short."""
        buffer = self._buffers.get(name)
        if buffer is None or len(buffer.values) < len(values):
            kind = ctypes.c_uint64 if name in _ADDRESSES else ctypes.c_int32
            buffer = self._buffers[name] = _Buffer.of((kind * max(64, 2 * len(values)))())
        buffer.values[: len(values)] = cast("list[int]", values)  # any sequence will do
        return buffer.address


def _records(layers: Sequence[CpuLayer]) -> ctypes.Array[_LayerRecord] | None:
    return (_LayerRecord * len(layers))(*map(_layer, layers)) if layers else None


def _layer(layer: CpuLayer) -> _LayerRecord:
    def address(norm: Tensor | None) -> int | None:
        return None if norm is None else norm.data_ptr()

    return _LayerRecord(
        layer.qkv.record,
        layer.output.record,
        layer.gate_up.record,
        layer.down.record,
        address(layer.attention_norm),
        address(layer.query_norm),
        address(layer.key_norm),
        address(layer.mlp_norm),
    )


def _model(
    model: CpuModel,
    layers: ctypes.Array[_LayerRecord] | None,
    layers_of_many: ctypes.Array[_LayerRecord] | None,
    pools: Tensor,
) -> _ModelRecord:
    return _ModelRecord(
        layers=len(model.layers),
        hidden=model.head.inputs,
        intermediate=model.layers[0].down.inputs,
        vocab=model.head.outputs,
        query_heads=model.query_heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        block_size=pools.shape[4],
        window=model.sliding_window or 0,
        activation=int(model.activation),
        kv_element=_KV_ELEMENTS[pools.dtype],
        norm_eps=model.norm_eps,
        scale=model.head_dim**-0.5,
        layer=layers,
        layer_of_many=layers_of_many,
        many=MANY_TOKENS,
        head=model.head.record,
        embedding=model.embedding.record,
        final_norm=model.final_norm.data_ptr(),
        cosines=model.cosines.data_ptr(),
        sines=model.sines.data_ptr(),
        pools=pools.data_ptr(),
        blocks=pools.shape[2],
    )


def _function(library: ctypes.CDLL, name: str, result: Any) -> Callable[..., Any]:
    function = getattr(library, name)
    function.restype = result
    return cast(Callable[..., Any], function)
