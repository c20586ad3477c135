"""A tenant's server, to which webhooks are posted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(slots=True)
class Receiver:
    """What came, and what it answers."""

    url: str = ""
    status: int = 200
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list[tuple[dict[str, str], bytes]])
    answers: threading.Event = field(default_factory=threading.Event)
    """Cleared, it takes a message and does not answer."""


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on a free port of this machine."""
    made = Receiver()
    made.answers.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            answers = made.answers.is_set()
            made.got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            if not answers:
                made.answers.wait(30)
                self.close_connection = True
                return
            self.send_response(made.status)
            if made.status == 302:
                self.send_header("location", made.url)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.url = f"http://127.0.0.1:{server.server_address[1]}/hook"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield made
        made.answers.set()
        server.shutdown()
        thread.join()
