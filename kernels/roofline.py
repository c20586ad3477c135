"""The table in ``kernels/README.md``: what each launch must move and compute, and the least time it can take.

    python -m headway.kernels.roofline [--write]

Counts are the kernels' own (``Case.counts``). Peaks are the vendors' dense figures (datasheets of A100 80 GB
SXM, H100 SXM, H200 SXM, Instinct MI300X); a launch takes at least

    max(bytes / bandwidth, operations / rate of the unit that multiplies)
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from headway.kernels.cases import Case, Unit, cases

BEGIN, END = "<!-- roofline: begin -->", "<!-- roofline: end -->"
README = Path(__file__).resolve().parent / "README.md"


@dataclass(frozen=True, slots=True)
class Peak:
    """What a chip can do at best, per second."""

    chip: str
    bytes: float
    operations: dict[Unit, float]

    def seconds(self, case: Case) -> float:
        """The roofline of a launch."""
        counts = case.counts
        return max(counts.bytes_moved / self.bytes, counts.flops / self.operations[case.unit])


# A100 has no fp8: such operands are widened and multiplied as bfloat16.
A100 = Peak("A100", 2.039e12, {"float32": 19.5e12, "bfloat16": 312e12, "int8": 624e12, "fp8": 312e12})
H100 = Peak("H100", 3.35e12, {"float32": 67e12, "bfloat16": 989e12, "int8": 1979e12, "fp8": 1979e12})
H200 = Peak("H200", 4.8e12, H100.operations)
MI300X = Peak("MI300X", 5.3e12, {"float32": 163.4e12, "bfloat16": 1307e12, "int8": 2615e12, "fp8": 2615e12})
PEAKS = (A100, H100, H200, MI300X)


def table() -> str:
    """All real launches as a Markdown table."""
    chips = " | ".join(f"{peak.chip} µs" for peak in PEAKS)
    head = f"| kernel | launch | MB | GFLOP | FLOP/B | bound on H100 | {chips} |"
    rule = "|---|---|--:|--:|--:|---|" + "--:|" * len(PEAKS)
    return "\n".join((head, rule, *map(_row, cases())))


def with_table(page: str) -> str:
    """The page with the table between its marks made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _row(case: Case) -> str:
    moved, flops = case.counts.bytes_moved, case.counts.flops
    is_memory = moved / H100.bytes >= flops / H100.operations[case.unit]
    times = " | ".join(f"{peak.seconds(case) * 1e6:,.1f}" for peak in PEAKS)
    return (
        f"| {case.kernel} | {case.label} | {moved / 1e6:,.2f} | {flops / 1e9:,.2f} | {flops / moved:,.1f} "
        f"| {'memory' if is_memory else case.unit} | {times} |"
    )


def main() -> None:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(description="Bytes, operations and least times of the kernels.")
    parser.add_argument("--write", action="store_true", help="into kernels/README.md")
    if parser.parse_args().write:
        README.write_text(with_table(README.read_text()))
    else:
        sys.stdout.write(f"{table()}\n")


if __name__ == "__main__":
    main()
