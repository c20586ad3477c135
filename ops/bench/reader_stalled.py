"""Readers that stop reading: what each makes others hold, and whether its answer waits for it."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from reader_service import Service
from reader_streams import LAST_CHUNK, Answer, Order, answer_of, expected_text, request_of

RECEIVE_BYTES: Final = 4096
"""Of each reader's own buffer: it is felt soon."""
WARM_TOKENS: Final = 8
SETTLED_SECONDS: Final = 2.0
GIVE_UP_SECONDS: Final = 120.0


@dataclass(frozen=True)
class Held:
    """What readers that do not read make others hold, in bytes for each."""

    readers: int
    answer: int
    """Size of a whole answer: what would be held without a bound."""
    gateway: int
    """Growth of the gateway's memory, what a stream takes anyway included."""
    kernel: int
    """In the gateway's sockets, sent and not taken."""
    problems: tuple[str, ...]
    """Of the answers, once they were read after all."""


def stall(service: Service, model: str, readers: int, tokens: int) -> Held:
    """Ask for long answers with many log-probabilities, read nothing until all is still, then read them.

    The gateway is a new one: memory that another's earlier streams have left free would hide what is held.
    """
    service.start_gateway()
    _read_at_once(Order(service.port, model, 0, 1, readers, WARM_TOKENS, 1.0, ""))
    order = Order(service.port, model, 0, 1, readers, tokens, 1.0, "")
    before = service.gateway.rss_bytes()
    with ExitStack() as stack:
        streams = [stack.enter_context(_ask(order, number)) for number in range(readers)]
        kernel = _settled(service, streams)
        held = service.gateway.rss_bytes() - before
        answers = [_read_after_all(order, number, stream) for number, stream in enumerate(streams)]
    return Held(
        readers,
        sum(answer.sizes for answer in answers) // readers,
        held // readers,
        kernel // readers,
        tuple(answer.problem for answer in answers if answer.problem),
    )


def _read_at_once(order: Order) -> None:
    """Have the gateway load all that it needs for such answers."""
    for number in range(order.streams):
        with _ask(order, number) as stream:
            answer = _read_after_all(order, number, stream)
        if answer.problem:
            raise SystemExit(f"a short answer went wrong: {answer.problem}")


def _ask(order: Order, number: int) -> socket.socket:
    stream = socket.socket()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    stream.connect(("127.0.0.1", order.port))
    stream.sendall(request_of(order, number, logprobs=True, top_logprobs=20))
    return stream


def _settled(service: Service, streams: Sequence[socket.socket]) -> int:
    """Wait until nothing moves any more; the bytes in the gateway's sockets."""
    ports = {stream.getsockname()[1] for stream in streams}
    give_up = time.monotonic() + GIVE_UP_SECONDS
    since, last = time.monotonic(), (0, 0.0)
    while time.monotonic() - since < SETTLED_SECONDS:
        worked = round(sum(worker.cpu_seconds() for worker in service.workers), 1)
        now = (_unsent_bytes(service.port, ports), worked)
        if now[0] == 0 or abs(now[1] - last[1]) > 0.3 or now[0] != last[0]:
            since, last = time.monotonic(), now
        if time.monotonic() > give_up:
            raise SystemExit(f"the answers that nobody reads do not come to rest: {now}")
        time.sleep(0.2)
    return last[0]


def _unsent_bytes(port: int, peers: set[int]) -> int:
    total = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        local, remote = (int(fields[at].rpartition(":")[2], 16) for at in (1, 2))
        if local == port and remote in peers:
            total += int(fields[4].partition(":")[0], 16)
    return total


def _read_after_all(order: Order, number: int, stream: socket.socket) -> Answer:
    stream.settimeout(30.0)
    pieces: list[tuple[float, bytes]] = []
    while not b"".join(piece for _, piece in pieces[-2:]).endswith(LAST_CHUNK):
        piece = stream.recv(1 << 16)
        if not piece:
            break
        pieces.append((time.monotonic(), piece))
    return answer_of(pieces, expected_text(number, order.tokens_of(number)))
