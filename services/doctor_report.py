"""What `headway doctor` says: one line for each line of the production checklist."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from headway.services.terminal import Terminal

F = TypeVar("F")


class Verdict(StrEnum):
    """How a line was found."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict, and what was found."""

    verdict: Verdict
    found: str


def ok(found: str) -> Finding:
    """As it should be, or of no concern here."""
    return Finding(Verdict.OK, found)


def warn(found: str) -> Finding:
    """It works, and somebody should know."""
    return Finding(Verdict.WARN, found)


def fail(found: str) -> Finding:
    """Jobs would be lost, refused, or wait for ever."""
    return Finding(Verdict.FAIL, found)


@dataclass(frozen=True, slots=True)
class Check(Generic[F]):
    """One line of the checklist. ``docs/production.md`` has the same words; a test compares them."""

    name: str
    meaning: str
    """Why it matters."""
    remedy: str
    """What to do when it is not ok."""
    examine: Callable[[F], Finding]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the report."""

    name: str
    finding: Finding
    meaning: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Report:
    """All lines; ``exit_code`` is 1 when one of them failed."""

    lines: tuple[Line, ...]

    @property
    def exit_code(self) -> int:
        """For scripts."""
        return int(any(line.finding.verdict is Verdict.FAIL for line in self.lines))

    def to_json(self) -> str:
        """One object; ``lines`` in the order of the checklist."""
        lines = [
            {
                "name": line.name,
                "verdict": line.finding.verdict.value,
                "found": line.finding.found,
                "meaning": line.meaning,
                "remedy": line.remedy,
            }
            for line in self.lines
        ]
        return json.dumps({"ok": self.exit_code == 0, "lines": lines})

    def show(self, terminal: Terminal) -> None:
        """For a person: what is not ok comes with its meaning and remedy."""
        colours = {Verdict.OK: "green", Verdict.WARN: "yellow", Verdict.FAIL: "red"}
        width = max(len(line.name) for line in self.lines)
        for line in self.lines:
            verdict = line.finding.verdict
            mark = terminal.paint(f"{verdict.value:<5}", colours[verdict])
            terminal.line(f"{mark} {line.name:<{width}}  {line.finding.found}")
            if verdict is not Verdict.OK:
                terminal.line(f"{'':{width + 8}}{line.meaning}")
                terminal.line(f"{'':{width + 8}}do: {line.remedy}")
        counts = [sum(line.finding.verdict is verdict for line in self.lines) for verdict in Verdict]
        terminal.line(f"\n{counts[0]} ok, {counts[1]} to know of, {counts[2]} to mend")


def examined(checks: Sequence[Check[F]], facts: F) -> tuple[Line, ...]:
    """The lines of these checks."""
    return tuple(Line(check.name, check.examine(facts), check.meaning, check.remedy) for check in checks)


def worst(findings: Sequence[Finding]) -> Finding:
    """The worst of what several servers gave; the first of equals."""
    order = list(Verdict)
    return max(findings, key=lambda finding: order.index(finding.verdict))
