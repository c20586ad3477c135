"""The command as a person runs it: a process of its own, that Ctrl-C ends with what it has."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from tests.services.bench.peer import Peer
from typer.testing import CliRunner

from headway.services.cli import app


async def test_ctrl_c_ends_the_command_with_its_files_written_and_says_so(tmp_path: Path) -> None:
    peer, report, page = Peer(), tmp_path / "run.json", tmp_path / "run.html"
    async with peer.serve() as url:
        arguments = ["bench", "--url", url, "--rate", "50", "--warmup", "0s", "--duration", "60s"]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "headway.services.cli", *arguments),
            *("--json", str(report), "--html", str(page)),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        while len(peer.asked) < 40 and process.returncode is None:
            await asyncio.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 130, err.decode()
    result = json.loads(report.read_text())
    assert result["interrupted"]
    assert result["points"][0]["finished"] > 0
    assert "INTERRUPTED" in out.decode()
    assert "stopping: what was measured is kept" in err.decode()
    assert "Interrupted" in page.read_text()


@contextmanager
def serving(peer: Peer) -> Iterator[str]:
    """A peer in a thread of its own: the command has this one, with its signals."""
    started: Future[str] = Future()
    over = asyncio.Event()

    async def serve() -> None:
        async with peer.serve() as url:
            started.set_result(url)
            await over.wait()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        yield started.result(10)
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


def test_json_to_standard_output_is_the_whole_result_and_nothing_else() -> None:
    with serving(Peer()) as url:
        # One core for server and client, and maybe others: lateness says nothing here.
        arguments = ["--url", url, "--rate", "20", "--warmup", "100ms", "--duration", "500ms"]
        arguments += ["--max-lateness", "5s", "--max-client-cpu", "1", "--json", "-"]
        done = CliRunner().invoke(app, ["bench", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["points"][0]["finished"] > 0
    assert "20/s:" in done.stderr
    assert "finished" in done.stderr


def test_what_cannot_be_meant_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    for arguments, words in (
        (["--rate", "0"], "numbers above 0"),
        (["--concurrency", "1.5"], "whole numbers"),
        (["--slo-ttft", "soon"], "a duration is written like"),
        (["--length-scale", "1,2"], "one number above 0, or fit"),
    ):
        done = CliRunner().invoke(app, ["bench", *arguments])
        assert done.exit_code == 2, arguments
        assert words in done.output
