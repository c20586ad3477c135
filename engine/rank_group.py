"""Ranks of one model over ``torch.distributed``: sums and joins between devices, plans between hosts.

Two ways: NCCL carries what GPUs compute (and is captured in their graphs), gloo carries plans, and on CPUs
everything. All ranks are processes of one machine and meet at a port of the loopback interface.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as torch_distributed
from torch import Tensor

distributed: Any = torch_distributed  # torch leaves much of it untyped

# torch 2.13 has a new name for it, and warns of the one that all others have.
_gather: Any = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor

MEETING_SECONDS = 600
"""For all ranks to have loaded torch and found each other, and for one sum."""

IDLE = timedelta(days=3650)
"""Followers wait for the next plan for as long as nobody asks for anything; who dies is noticed at once."""

MESSAGE_BYTES = 16 << 10
"""Of the one broadcast that a step takes; longer plans take a second one."""

LENGTH_BYTES = 8


class RankGroup:
    """This process's place among ranks that compute one model. All of them make the same calls in order."""

    def __init__(
        self, rank: int, size: int, port: int, device: torch.device, *, listen_fd: int | None = None
    ) -> None:
        """Meet the others; returns when all are there. Rank 0 holds the meeting, at a socket of its own."""
        self.rank = rank
        self.size = size
        waiting = timedelta(seconds=MEETING_SECONDS)
        store = distributed.TCPStore(
            "127.0.0.1",
            port,
            size,
            rank == 0,
            timeout=waiting,
            wait_for_workers=False,
            master_listen_fd=listen_fd,
        )
        backend = "nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=waiting)
        self._plans = distributed.new_group(backend="gloo", timeout=IDLE)

    def add(self, part: Tensor) -> Tensor:
        """The sum of all ranks' parts, in place: the same bits on every rank."""
        distributed.all_reduce(part)
        return part

    def add_in_order(self, part: Tensor) -> Tensor:
        """The sum of all ranks' parts, rank 0's first, in float32: libraries choose an order by the size."""
        gathered = part.new_empty((self.size, *part.shape))
        _gather(gathered.view(self.size * len(part), *part.shape[1:]), part.contiguous())
        total = gathered[0].float()
        for other in gathered[1:]:
            total = total + other
        return total.to(part.dtype)

    def join(self, part: Tensor) -> Tensor:
        """All ranks' parts [rows, width] beside each other: [rows, size · width]."""
        rows, width = part.shape
        joined = part.new_empty((self.size * rows, width))
        _gather(joined, part.contiguous())
        return joined.view(self.size, rows, width).transpose(0, 1).reshape(rows, self.size * width)

    def least(self, count: int) -> int:
        """The smallest of all ranks' counts."""
        counts = torch.tensor([count])
        distributed.all_reduce(counts, op=distributed.ReduceOp.MIN, group=self._plans)
        return int(counts.item())

    def told(self, message: bytes) -> bytes:
        """Rank 0's message, on every rank, whenever rank 0 has it. RuntimeError: that is gone."""
        if self.rank > 0:
            return self.receive()
        self.send(message)
        return message

    def send(self, message: bytes) -> None:
        """From rank 0 to all others."""
        piece = bytearray(MESSAGE_BYTES)
        piece[:LENGTH_BYTES] = len(message).to_bytes(LENGTH_BYTES, "little")
        first = message[: MESSAGE_BYTES - LENGTH_BYTES]
        piece[LENGTH_BYTES : LENGTH_BYTES + len(first)] = first
        self._broadcast(piece)
        if len(first) < len(message):
            self._broadcast(bytearray(message[len(first) :]))

    def receive(self) -> bytes:
        """What rank 0 sends next, whenever that is. RuntimeError: it is gone."""
        piece = self._broadcast(bytearray(MESSAGE_BYTES))
        length = int.from_bytes(piece[:LENGTH_BYTES], "little")
        first = bytes(piece[LENGTH_BYTES : LENGTH_BYTES + length])
        return (
            first + bytes(self._broadcast(bytearray(length - len(first)))) if length > len(first) else first
        )

    def close(self) -> None:
        """Leave the others."""
        distributed.destroy_process_group()

    def _broadcast(self, piece: bytearray) -> bytearray:
        shared = cast(Any, torch).frombuffer(piece, dtype=torch.uint8)
        distributed.broadcast(shared, src=0, group=self._plans)
        return piece


def meeting_socket() -> socket.socket:
    """A listening socket on a free port of the loopback interface, for rank 0."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    return listening
