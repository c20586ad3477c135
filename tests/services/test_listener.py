"""What a reader that stops reading may cost: the kernel takes no whole answers for it."""

from __future__ import annotations

import select
import socket

from headway.services.listener import UNSENT_BYTES, open_listener

RECEIVE_BYTES = 4096
PIECE = b"x" * 1500


def send_until_stalled(connection: socket.socket) -> int:
    """Send while the kernel takes more; the bytes that it took."""
    taken = 0
    while select.select([], [connection], [], 0.2)[1]:
        taken += connection.send(PIECE)
        assert taken < 16 * UNSENT_BYTES, "nobody reads, and still it takes more"
    return taken


def test_the_kernel_holds_little_for_a_reader_that_reads_nothing_and_all_of_it_arrives() -> None:
    with open_listener("127.0.0.1", 0) as listener, socket.socket() as reader:
        listener.setblocking(True)
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        reader.connect(listener.getsockname())
        connection, _ = listener.accept()
        with connection:
            connection.setblocking(False)
            taken = send_until_stalled(connection)
            assert taken < 2 * UNSENT_BYTES
            connection.shutdown(socket.SHUT_WR)
            assert len(b"".join(iter(lambda: reader.recv(1 << 16), b""))) == taken
