"""Where the native model takes packed weights from: a checkpoint (``native_weights``), or a file of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol, cast

import torch
from torch import Tensor

from headway.engine.packed_file import DamagedFileError, PackedFile, PackedWriter
from headway.kernels.cpu_gemm import PackedWeight
from headway.kernels.weight_rows import WeightKind

BIAS: Final = ".bias"


class WeightParts(Protocol):
    """Parts by Hugging Face's names of modules."""

    def vector(self, name: str) -> Tensor:
        """A norm's weight, float32."""
        ...

    def weight(
        self,
        names: Sequence[str],
        *,
        has_bias: bool = False,
        is_paired: bool = False,
        of_many: bool = False,
    ) -> PackedWeight:
        """Projections fused along their outputs; ``of_many``: in the form for steps of many tokens."""
        ...


class WrittenParts:
    """Passes parts through to a file. What it returns has no values: memory holds one part at a time."""

    def __init__(self, parts: WeightParts, writer: PackedWriter) -> None:
        self._parts = parts
        self._writer = writer
        self._shapes: dict[str, tuple[int, int, int, bool]] = {}

    def vector(self, name: str) -> Tensor:
        """Write it."""
        values = self._parts.vector(name)
        self._writer.add(name, values)
        return values

    def weight(
        self,
        names: Sequence[str],
        *,
        has_bias: bool = False,
        is_paired: bool = False,
        of_many: bool = False,
    ) -> PackedWeight:
        """Write it, with its bias."""
        weight = self._parts.weight(names, has_bias=has_bias, is_paired=is_paired, of_many=of_many)
        name = _joined(names, of_many)
        self._writer.add(name, weight.buffer)
        if weight.bias is not None:
            self._writer.add(name + BIAS, weight.bias)
        self._shapes[name] = (int(weight.kind), weight.outputs, weight.inputs, weight.is_paired)
        weight.buffer = torch.empty(0, dtype=torch.uint8)
        return weight

    def finish(self) -> None:
        """Make the file whole."""
        self._writer.finish({"weights": self._shapes})


class StoredParts:
    """Parts of a file that ``WrittenParts`` made, in place."""

    def __init__(self, file: PackedFile) -> None:
        self._file = file
        self._shapes = cast(Mapping[str, tuple[int, int, int, bool]], file.facts["weights"])

    def vector(self, name: str) -> Tensor:
        """Mapped. DamagedFileError: the file lacks it."""
        return self._tensor(name, torch.float32)

    def weight(
        self,
        names: Sequence[str],
        *,
        has_bias: bool = False,
        is_paired: bool = False,
        of_many: bool = False,
    ) -> PackedWeight:
        """Mapped. DamagedFileError: the file lacks it, or has it in another form."""
        name = _joined(names, of_many)
        kind, outputs, inputs, was_paired = self._shapes.get(name, (0, 0, 0, False))
        if not outputs or was_paired != is_paired:
            raise DamagedFileError(f"{name} is not there as it is wanted")
        return PackedWeight.packed_before(
            WeightKind(kind),
            outputs,
            inputs,
            is_paired=is_paired,
            buffer=self._tensor(name, torch.uint8),
            bias=self._tensor(name + BIAS, torch.float32) if has_bias else None,
        )

    def _tensor(self, name: str, dtype: torch.dtype) -> Tensor:
        if name not in self._file:
            raise DamagedFileError(f"{name} is not there")
        return self._file.tensor(name, dtype)


def _joined(names: Sequence[str], of_many: bool) -> str:
    return " + ".join(names) + (", of many" if of_many else "")
