"""What was found, as tables for people and JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpu_checks.ceilings import Ceilings
from gpu_checks.decode_checks import DecodeCheck
from gpu_checks.engine_results import EngineCheck
from gpu_checks.kernel_checks import KernelCheck
from gpu_checks.swap_checks import SwapCheck
from gpu_checks.tile_checks import TileCheck


@dataclass(slots=True)
class Report:
    """Filled as the checks go, so that what was found outlives what breaks."""

    device: str
    versions: dict[str, str]
    is_interpreted: bool
    ceilings: Ceilings | None = None
    kernels: list[KernelCheck] = field(default_factory=list[KernelCheck])
    engine: list[EngineCheck] = field(default_factory=list[EngineCheck])
    decode: list[DecodeCheck] = field(default_factory=list[DecodeCheck])
    swaps: list[SwapCheck] = field(default_factory=list[SwapCheck])
    tiles: list[TileCheck] = field(default_factory=list[TileCheck])
    broken: list[str] = field(default_factory=list[str])
    """Checks that raised."""
    left_out: list[str] = field(default_factory=list[str])
    """Checks that there was no time or memory for."""
    seconds: float = 0.0

    @property
    def wrong(self) -> list[str]:
        """Everything that is not as promised, in words."""
        return [
            *self.broken,
            *(f"{each.kernel}, {each.label}: {text}" for each in self.kernels for text in each.problems),
            *(f"{each.promise}: {text}" for each in self.engine for text in each.problems),
            *(f"decode of {each.model}: no graph was recorded" for each in self.decode if not each.graphs),
            *(f"swap {each.way}: other bytes came" for each in self.swaps if not each.is_right),
            *(
                f"{each.kernel}, {each.label}, tile {each.tile}: {text}"
                for each in self.tiles
                for text in each.problems
            ),
        ]

    def write(self, folder: Path) -> None:
        """gpu_check.json and gpu_check.md."""
        folder.mkdir(parents=True, exist_ok=True)
        content = {**asdict(self), "wrong": self.wrong}
        (folder / "gpu_check.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        (folder / "gpu_check.md").write_text(self.page())

    def page(self) -> str:
        """Tables in Markdown."""
        parts = [
            f"# {self.device}",
            ", ".join(f"{name} {version}" for name, version in self.versions.items())
            + (", kernels interpreted on tiny sizes: figures mean nothing" if self.is_interpreted else ""),
            *self._ceilings(),
            *_table(
                "Kernels",
                ("kernel", "launch", "right", "µs", "limit µs", "of the limit", "graph"),
                [
                    (
                        each.kernel,
                        each.label,
                        _yes(not each.problems),
                        _scaled(each.seconds, 1e6),
                        _scaled(each.limit_seconds, 1e6),
                        _percent(each.share),
                        _yes(each.is_graph),
                    )
                    for each in self.kernels
                ],
            ),
            *_table(
                "Engine against the CPU",
                ("promise", "holds", "detail"),
                [(each.promise, _yes(not each.problems), each.detail) for each in self.engine],
            ),
            *_table(
                "Decode steps, ms (and times the limit: weights and KV at the read bandwidth)",
                ("model", "rows", "context", "limit", "launch by launch", "from a graph", "launched ahead"),
                [_decode_row(each) for each in self.decode],
            ),
            *_table(
                "Swaps",
                ("way", "right", "GB/s", "of one plain copy"),
                [
                    (
                        each.way,
                        _yes(each.is_right),
                        _scaled(each.bytes_per_second, 1e-9),
                        _percent(each.bytes_per_second / each.limit),
                    )
                    for each in self.swaps
                ],
            ),
            *_table(
                "Tiles",
                ("kernel", "launch", "tile", "right", "µs", "of the default's time"),
                [_tile_row(each) for each in self.tiles],
            ),
            *(f"Left out: {text}" for text in self.left_out),
            *(f"WRONG: {text}" for text in self.wrong),
            f"{self.seconds:.0f} s; {'everything right' if not self.wrong else 'NOT right'}.",
        ]
        return "\n\n".join(parts) + "\n"

    def _ceilings(self) -> list[str]:
        if self.ceilings is None:
            return []
        found = self.ceilings
        rows = [
            ("copy (read + written)", f"{found.copy_bytes / 1e9:,.1f} GB/s"),
            ("read", f"{found.read_bytes / 1e9:,.1f} GB/s"),
            ("host to device", f"{found.to_device_bytes / 1e9:,.1f} GB/s"),
            ("device to host", f"{found.to_host_bytes / 1e9:,.1f} GB/s"),
            *((f"products, {unit}", f"{rate / 1e12:,.2f} T/s") for unit, rate in found.operations.items()),
        ]
        return _table("Ceilings, measured", ("what", "best"), rows)


def _decode_row(each: DecodeCheck) -> tuple[str, ...]:
    def cell(seconds: float) -> str:
        return f"{seconds * 1e3:.3f} ({seconds / each.limit_seconds:.2f})"

    limit = f"{each.limit_seconds * 1e3:.3f}"
    times = (cell(each.launched_seconds), cell(each.graph_seconds), cell(each.ahead_seconds))
    return each.model, str(each.rows), str(each.context), limit, *times


def _tile_row(each: TileCheck) -> tuple[str, ...]:
    right, time = _yes(not each.problems), _scaled(each.seconds, 1e6)
    return each.kernel, each.label, each.tile, right, time, _percent(each.share)


def _table(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    if not rows:
        return []
    lines = [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows)]
    return [f"## {title}", "\n".join(lines)]


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


def _scaled(value: float | None, factor: float) -> str:
    return "-" if value is None else f"{value * factor:,.1f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
