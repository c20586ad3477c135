"""The figures of the batch's benchmark, and what they say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headway.services.percentile import percentile

LIMIT: Final = 1.2
"""The 99th percentile of the time to first token beside a batch, as a multiple of that without."""
LEAST_CHATS: Final = 200
"""Of each arm: below it the 99th percentile is one of the two worst chats."""


@dataclass(frozen=True)
class Chat:
    """What one reader saw (seconds)."""

    ttft: float
    itl: tuple[float, ...]


@dataclass(frozen=True)
class Arm:
    """One arm of one round."""

    chats: Sequence[Chat]
    seconds: float
    lines: int
    """Of the batch, all done within the time."""


@dataclass(frozen=True)
class ArmFigures:
    """All rounds of an arm (milliseconds)."""

    chats: int
    ttft_p50: float
    ttft_p99: float
    itl_p50: float
    itl_p99: float

    def line(self, name: str) -> str:
        """For people."""
        return (
            f"  {name:7} {self.chats:4} chats  TTFT P50 {self.ttft_p50:6.0f}  P99 {self.ttft_p99:6.0f} ms"
            f"   ITL P50 {self.itl_p50:5.1f}  P99 {self.itl_p99:6.1f} ms"
        )


@dataclass(frozen=True)
class Figures:
    """What is reported."""

    chats_per_second: float
    beside: ArmFigures
    alone: ArmFigures
    ttft_p99_ratio: float
    lines_per_second: float
    verdict: str

    def lines(self) -> list[str]:
        """For people."""
        return [
            self.beside.line("beside"),
            self.alone.line("alone"),
            f"  P99 TTFT {self.ttft_p99_ratio:.2f} of that without a batch (limit {LIMIT}); "
            f"{self.lines_per_second:.1f} lines/s beside {self.chats_per_second:.2f} chats/s: {self.verdict}",
        ]


def report(arms: Mapping[str, Sequence[Arm]], rate: float) -> tuple[Figures, int]:
    """The figures of all rounds, and the exit code: 0 held, 1 missed, 2 too few chats to say."""
    beside, alone = (_figures(arms[name]) for name in ("beside", "alone"))
    ratio = beside.ttft_p99 / alone.ttft_p99
    lines = sum(arm.lines for arm in arms["beside"]) / sum(arm.seconds for arm in arms["beside"])
    if min(beside.chats, alone.chats) < LEAST_CHATS:
        verdict, code = f"too few chats to judge, {LEAST_CHATS} of each arm are needed: more --rounds", 2
    elif ratio > LIMIT:
        verdict, code = "missed", 1
    else:
        verdict, code = "held", 0
    return Figures(rate, beside, alone, ratio, lines, verdict), code


def _figures(arms: Sequence[Arm]) -> ArmFigures:
    chats = [chat for arm in arms for chat in arm.chats]
    ttft = [chat.ttft for chat in chats]
    itl = [gap for chat in chats for gap in chat.itl]
    of = [percentile(times, percent) for times in (ttft, itl) for percent in (50, 99)]
    return ArmFigures(len(chats), *(1000 * value for value in of))
