"""A real S3-compatible server (moto's) that checks keys, behind a link that can be cut."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

BUCKET = "batches"
REGION = "us-east-1"
REQUESTS_BEFORE_KEYS = 4
"""Those that make the user, its rights, its key and the bucket: from then on a request needs a key."""
POLICY = (
    '{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:*",'
    '"Resource":["arn:aws:s3:::batches","arn:aws:s3:::batches/*"]}]}'
)


@dataclass(slots=True)
class ObjectStore:
    """The server as its clients see it."""

    key_id: str
    secret: str
    link: Link

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/headway"

    @property
    def variables(self) -> dict[str, str]:
        """What a deployment sets."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.link.port}",
            "AWS_ACCESS_KEY_ID": self.key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": REGION,
        }


class Link:
    """A TCP port in front of another; ``cut`` refuses and breaks connections until ``mend``.

    It runs in a thread of its own: those who wait for what comes through it may block their loop.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def mend(self) -> None:
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    def cut(self) -> None:
        asyncio.run_coroutine_threadsafe(self._break(), self._loop).result()

    def close(self) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _break(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._open:
            writer.transport.abort()
        while self._open:
            await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target)
        both = {writer, up_writer}
        self._open |= both
        await asyncio.gather(_pass_on(reader, up_writer), _pass_on(up_reader, writer))
        self._open -= both


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


@asynccontextmanager
async def object_store() -> AsyncGenerator[ObjectStore]:
    """A server with one bucket and one user who may use it."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = _started(port)
    try:
        key_id, secret = await asyncio.to_thread(_prepared, port, process)
        link = Link(port)
        link.mend()
        yield ObjectStore(key_id, secret, link)
        link.close()
    finally:
        process.kill()
        process.wait()


def _started(port: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        env=os.environ | {"INITIAL_NO_AUTH_ACTION_COUNT": str(REQUESTS_BEFORE_KEYS)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _prepared(port: int, process: subprocess.Popen[bytes]) -> tuple[str, str]:
    import botocore.session  # type: ignore[import-untyped]  # it comes with s3fs, and has no types

    url = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 30
    while True:
        assert process.poll() is None
        assert time.monotonic() < deadline
        try:
            urlopen(f"{url}/moto-api/").close()
            break
        except URLError:
            time.sleep(0.02)
    session: Any = botocore.session.get_session()
    own = {"region_name": REGION, "endpoint_url": url, "aws_access_key_id": "x", "aws_secret_access_key": "x"}
    accounts, files = session.create_client("iam", **own), session.create_client("s3", **own)
    accounts.create_user(UserName="headway")
    accounts.put_user_policy(UserName="headway", PolicyName="files", PolicyDocument=POLICY)
    key = accounts.create_access_key(UserName="headway")["AccessKey"]
    files.create_bucket(Bucket=BUCKET)
    for client in (accounts, files):
        client.close()
    return key["AccessKeyId"], key["SecretAccessKey"]
