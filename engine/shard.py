"""One rank's part of a model that several devices compute together (Megatron-LM, arXiv 1909.08053).

Of every layer a rank has some heads and some of the MLP's width. Products are cut two ways:

    outputs   q, k, v, gate, up, head: each rank computes its own outputs from the whole input
    inputs    attention's output, down: each rank multiplies what it has; the sum over ranks is the result

So there are two sums per layer and one joining of logits per step. Everything between is the rank's own, its
heads' KV included; embedding, norms and the residual are the same on every rank, bit by bit, and so are the
tokens that each of them chooses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from torch import Tensor

from headway.engine.errors import ModelError
from headway.engine.linear import Product
from headway.engine.model_config import ModelConfig


class Group(Protocol):
    """Ranks that compute together; every call is made by all of them, in the same order."""

    @property
    def rank(self) -> int:
        """This one's place, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many there are."""
        ...

    def add(self, part: Tensor) -> Tensor:
        """The sum of all ranks' parts, the same on each of them; ``part`` may be overwritten."""
        ...

    def add_in_order(self, part: Tensor) -> Tensor:
        """The same, added rank by rank: the order does not depend on how much there is to add."""
        ...

    def join(self, part: Tensor) -> Tensor:
        """All ranks' parts [rows, width] beside each other: [rows, size · width]."""
        ...

    def least(self, count: int) -> int:
        """The smallest of all ranks' counts."""
        ...

    def told(self, message: bytes) -> bytes:
        """Rank 0's message, on every rank."""
        ...


@dataclass(frozen=True, slots=True)
class Shard:
    """Which part, and with whom; ``WHOLE`` is all of it, alone."""

    rank: int = 0
    size: int = 1
    group: Group | None = None
    in_fixed_order: bool = False
    """Sums over the ranks are made in one order, whatever the batch."""

    def config(self, config: ModelConfig) -> ModelConfig:
        """The shape of the part. ModelError: the model cannot be cut into so many."""
        if self.size == 1:
            return config
        cut = (config.query_head_count, config.kv_head_count, config.intermediate_size)
        if any(count % self.size for count in cut):
            raise ModelError(
                f"--tensor-parallel {self.size} does not divide this model: it has {cut[0]} query heads, "
                f"{cut[1]} key and value heads and an MLP of {cut[2]}; choose a divisor of all three"
            )
        queries, keys, inner = (count // self.size for count in cut)
        return replace(config, query_head_count=queries, kv_head_count=keys, intermediate_size=inner)

    def outputs(self, weight: Tensor) -> Tensor:
        """This rank's rows of a weight [out, in], or of a bias [out]."""
        return weight if self.size == 1 else weight.chunk(self.size, dim=0)[self.rank]

    def inputs(self, weight: Tensor) -> Tensor:
        """This rank's columns of a weight [out, in]."""
        return weight if self.size == 1 else weight.chunk(self.size, dim=1)[self.rank]

    def summed(self, product: Product) -> Product:
        """A product of which each rank has some inputs."""
        group = self.group
        if group is None:
            return product
        add = group.add_in_order if self.in_fixed_order else group.add
        return lambda x: add(product(x))

    def joined(self, product: Product) -> Product:
        """A product of which each rank has some outputs, where everybody wants all of them."""
        group = self.group
        return product if group is None else lambda x: group.join(product(x))

    def agree(self, count: int) -> int:
        """What every rank has: each may have measured another figure, and all need the same."""
        return count if self.group is None else self.group.least(count)

    def decided(self, decide: Callable[[], bytes]) -> bytes:
        """What rank 0 decides, on every rank; the others wait for it."""
        if self.group is None:
            return decide()
        return self.group.told(decide() if self.rank == 0 else b"")


WHOLE = Shard()
