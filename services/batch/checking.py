"""The first pass over a batch's input: is every line a request, and where does each part begin?"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

from headway.queueing.batch import MAX_LINES, BatchFault, Checked
from headway.services.batch.line import Line, LineError, RawLine, raw_lines, read_line
from headway.services.batch.storage import OpenFile

MOST_FAULTS: Final = 100
"""Named in the batch's errors; a file that is wrong is wrong in every line."""


class InputCheck:
    """Reads an input once, in memory that grows by 16 bytes a line (the custom ids seen)."""

    def __init__(self, endpoint: str, part_lines: int) -> None:
        self._endpoint = endpoint
        self._part_lines = part_lines
        self._seen: dict[bytes, int] = {}
        self._models: set[str] = set()
        self._offsets: list[int] = []
        self._lines = 0
        self.faults: list[BatchFault] = []

    def read(self, opened: OpenFile) -> None:
        """Look at every line, or at as many as show that the file cannot be worked through."""
        for raw in raw_lines(opened):
            if raw.number > MAX_LINES:
                self._fault("too_many_requests", f"a batch may have {MAX_LINES} requests: split the file")
                return
            if (raw.number - 1) % self._part_lines == 0:
                self._offsets.append(raw.offset)
            self._lines = raw.number
            self._take(raw)
            if len(self.faults) >= MOST_FAULTS:
                return
        if not self._lines:
            self._fault("empty_file", "the file has no requests")

    def result(self, now_ms: int) -> Checked:
        """What the input holds; only without faults."""
        assert not self.faults, "a file with faults is not worked through"
        model = next(iter(self._models)) if len(self._models) == 1 else None
        return Checked(now_ms, self._lines, self._part_lines, tuple(self._offsets), model)

    def _take(self, raw: RawLine) -> None:
        try:
            line = read_line(raw, self._endpoint)
        except LineError as error:
            self.faults.append(error.fault)
            return
        mark = blake2b(line.custom_id.encode(errors="surrogatepass"), digest_size=16).digest()
        first = self._seen.setdefault(mark, line.number)
        if first != line.number:
            self.faults.append(
                BatchFault(
                    "duplicate_custom_id",
                    f"the custom_id {line.custom_id[:80]!r} is that of line {first} too",
                    line.number,
                    "custom_id",
                )
            )
        self._note_model(line)

    def _note_model(self, line: Line) -> None:
        if len(self._models) < 2:
            self._models.add(str(line.body.get("model"))[:128])

    def _fault(self, code: str, message: str) -> None:
        self.faults.append(BatchFault(code, message))
