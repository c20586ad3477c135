"""``headway batch run``: a file of requests to a file of answers, from a terminal straight into the queue.

Each answer is appended to its file as it comes. What a file holds is done: the same command again goes on
with the rest, and finds in the queue what was answered meanwhile.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final, cast

import orjson

from headway import __version__
from headway.gateway.constraint_checks import ConstraintChecks
from headway.gateway.model_directory import ModelDirectory
from headway.queueing.batch import ENDPOINTS
from headway.queueing.errors import QueueUnavailableError
from headway.queueing.protocol import Queue
from headway.services.batch.answered import Answered
from headway.services.batch.asked import Terms
from headway.services.batch.checking import InputCheck
from headway.services.batch.commands import with_queue
from headway.services.batch.flight import Flight
from headway.services.batch.line import Line, LineError, RawLine, raw_lines, read_line
from headway.services.batch.pace import Pace
from headway.services.batch.progress import ProgressBar
from headway.services.constraint import constraint_refusal
from headway.services.errors import ServiceError, UsageError

SECONDS: Final = 7 * 86_400.0 - 3600
"""The jobs' deadline: as far away as one may be."""
_RUN: Final = re.compile(rb"batch_[0-9a-f]{24}")


class LocalRun:
    """One run of a file. Exit codes: 0 every line has an answer, 1 some have an error, 130 stopped."""

    def __init__(self, source: Path, output: Path, errors: Path, tenant: str, most_in_flight: int) -> None:
        self._source = source
        self._output = output
        self._errors = errors
        self._tenant = tenant
        self._most_in_flight = most_in_flight
        self._mark = output.with_name(f"{output.name}.run")
        """Exists while the run is unfinished; holds the name under which its jobs are posted."""
        self._stopped = False
        self._forms = ConstraintChecks(constraint_refusal)

    def run(self, redis_url: str | None, state_dir: Path, *, shows: bool) -> int:
        """Work through the file; the exit code. Raises ServiceError."""
        self._check_places()
        endpoint, lines = self._check()
        with self._alone():
            return self._run(endpoint, lines, redis_url, state_dir, shows=shows)

    def _run(self, endpoint: str, lines: int, redis_url: str | None, state_dir: Path, *, shows: bool) -> int:
        run_id = self._resume()
        done = self._done_ids(self._output) | self._done_ids(self._errors)
        bar = ProgressBar(sys.stderr, lines, shows=shows and sys.stderr.isatty())
        with self._output.open("ab") as output, self._errors.open("ab") as errors:
            with_queue(
                redis_url,
                state_dir,
                lambda queue: self._work(queue, endpoint, run_id, done, files=(output, errors), bar=bar),
            )
        bar.close()
        self._forms.close()
        if self._stopped:
            print("headway: stopped; the same command goes on from here", file=sys.stderr)
            return 130
        self._mark.unlink(missing_ok=True)
        failed = len(self._done_ids(self._errors))
        if not failed:
            self._errors.unlink(missing_ok=True)
        elif shows:
            print(f"headway: {failed} of {lines} lines have an error: {self._errors}", file=sys.stderr)
        return 1 if failed else 0

    # -- before ---------------------------------------------------------------------------------------

    def _check_places(self) -> None:
        """Raise UsageError where a file would be two things at once."""
        places = {"the input": self._source, "-o": self._output, "-e": self._errors, "the mark": self._mark}
        seen: dict[Path, str] = {}
        for name, path in places.items():
            other = seen.setdefault(path.resolve(), name)
            if other != name:
                raise UsageError(f"{path} is {other} and {name} too", hint="give each a file of its own")

    def _alone(self) -> IO[bytes]:
        """The mark; while it is open, no other run works on the same output. Raises UsageError.

        What is locked stays the same file when the run gets another name, and the lock goes with the process.
        """
        while True:
            try:
                mark = self._mark.open("ab")
            except OSError as error:
                raise UsageError(f"{self._mark} cannot be written: {error.strerror}") from None
            try:
                fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                mark.close()
                raise UsageError(
                    f"another run works on {self._output} now", hint="wait for it, or name another -o"
                ) from None
            except OSError:
                pass  # a file system without locks: then it is up to its user
            if self._is_in_place(mark):
                return mark
            mark.close()  # another run came to its end in between, and has removed this one: lock a new one

    def _is_in_place(self, mark: IO[bytes]) -> bool:
        """Whether the mark's name is still that of the opened file."""
        try:
            return os.path.samestat(os.fstat(mark.fileno()), self._mark.stat())
        except FileNotFoundError:
            return False

    def _check(self) -> tuple[str, int]:
        """The endpoint that the lines ask for, and how many there are; raises UsageError."""
        try:
            with self._source.open("rb") as opened:
                first = next(raw_lines(opened), None)
                url = _url_of(first)
                opened.seek(0)
                check = InputCheck(url if url in ENDPOINTS else ENDPOINTS[0], part_lines=1 << 30)
                check.read(opened)
        except OSError as error:
            raise UsageError(f"{self._source} cannot be read: {error.strerror}") from None
        if check.faults:
            fault = check.faults[0]
            where = "" if fault.line is None else f", line {fault.line}"
            more = "" if len(check.faults) == 1 else f" (and {len(check.faults) - 1} more)"
            raise UsageError(f"{self._source}{where}: {fault.message}{more}")
        return url, check.result(0).lines

    def _resume(self) -> str:
        """The run's name, kept so that the same command finds its jobs; raises UsageError."""
        text = self._mark.read_bytes().strip()
        if _RUN.fullmatch(text):
            return text.decode()
        if text:
            raise UsageError(f"{self._mark} is no mark of a run", hint="name another -o")
        for path in (self._output, self._errors):
            if path.exists() and path.stat().st_size:
                self._mark.unlink()
                raise UsageError(f"{path} is there already", hint="remove it, or name another -o")
        return self._name_run()

    def _name_run(self) -> str:
        """A fresh name, in the place where the next run looks for it."""
        run_id = f"batch_{secrets.token_hex(12)}"
        try:
            with self._mark.open("r+b") as mark:  # names are of one length: never half of one, or none
                mark.write(run_id.encode())
        except OSError as error:
            raise UsageError(f"{self._mark} cannot be written: {error.strerror}") from None
        return run_id

    @staticmethod
    def _done_ids(path: Path) -> set[str]:
        """The custom ids that a results file holds; half a line at its end, of a killed run, is cut off."""
        found: set[str] = set()
        if not path.exists():
            return found
        with path.open("rb+") as opened:
            whole = 0
            for text in opened:
                if not text.endswith(b"\n"):
                    opened.truncate(whole)
                    break
                whole += len(text)
                try:
                    found.add(orjson.loads(text)["custom_id"])
                except (orjson.JSONDecodeError, KeyError, TypeError):
                    raise UsageError(
                        f"{path} holds a line that no run has written: {text[:60]!r}",
                        hint="put it right, or remove it with its .run, and begin anew",
                    ) from None
        return found

    # -- the work -------------------------------------------------------------------------------------

    async def _work(
        self,
        queue: Queue,
        endpoint: str,
        run_id: str,
        done: set[str],
        *,
        files: tuple[IO[bytes], IO[bytes]],
        bar: ProgressBar,
    ) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        models = ModelDirectory(queue, ttl_seconds=2.0, clock=time.monotonic)
        flight = Flight(
            queue,
            endpoint,
            lambda: Terms(run_id, self._tenant, SECONDS, int(time.time()), f"headway-{__version__}"),
            models,
            self._forms,
            clock=time.monotonic,
            most=self._most_in_flight,
        )
        pace = Pace(0.02, 1.0)
        is_away = False
        bar.advance(len(done))
        await flight.prepare()  # no server: said at once; one that goes away later is waited for
        with self._source.open("rb") as opened:
            todo = self._lines(opened, endpoint, done)
            is_read = False
            while not self._stopped and not (is_read and not flight.size):
                try:
                    await flight.prepare()
                    while not is_read and flight.has_room and not flight.rests:
                        line = next(todo, None)
                        if line is None:
                            is_read = True
                        else:
                            await flight.add(0, line)
                    found = [answer for _, answer in await flight.collect()]
                except QueueUnavailableError as error:
                    if not is_away:
                        bar.tell(f"headway: {error}; nothing is lost, the run goes on once it can be reached")
                    is_away = True
                    await asyncio.sleep(min(error.retry_after_seconds, 2.0))
                    continue
                if is_away:
                    bar.tell("headway: the server can be reached again")
                is_away = False
                self._write(found, files)
                bar.advance(len(found))
                await asyncio.sleep(pace.after(len(found), flight.size))
            if self._stopped:
                self._write(await self._end(flight), files)

    async def _end(self, flight: Flight) -> list[Answered]:
        """Cancel what is in the queue; what was answered by then. Raises QueueUnavailableError.

        The next run posts the rest under other names: under these it would find jobs that were cancelled.
        """
        self._name_run()
        await flight.end("batch_cancelled", lambda: False)
        return [answer for _, answer in await flight.collect() if not answer.is_error]

    def _write(self, found: list[Answered], files: tuple[IO[bytes], IO[bytes]]) -> None:
        output, errors = files
        for answer in found:
            (errors if answer.is_error else output).write(answer.text)
        if found:
            output.flush()
            errors.flush()

    def _lines(self, opened: IO[bytes], endpoint: str, done: set[str]) -> Iterator[Line]:
        for raw in raw_lines(opened):
            try:
                line = read_line(raw, endpoint)
            except LineError as error:
                raise ServiceError(f"{self._source} was changed meanwhile: {error}") from None
            if line.custom_id not in done:
                yield line

    def _stop(self) -> None:
        if self._stopped:
            os._exit(130)
        self._stopped = True


def _url_of(first: RawLine | None) -> str:
    try:
        parsed: Any = {} if first is None else orjson.loads(first.text)
    except orjson.JSONDecodeError:
        parsed = {}
    url = cast("dict[str, Any]", parsed).get("url") if isinstance(parsed, dict) else None
    return url if isinstance(url, str) else ENDPOINTS[0]
