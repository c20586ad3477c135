"""The page's table is what the kernels' own counts say today."""

from __future__ import annotations

from headway.kernels.cases import cases
from headway.kernels.roofline import BEGIN, END, PEAKS, README, with_table


def test_the_table_in_the_readme_is_current() -> None:
    page = README.read_text()
    assert BEGIN in page
    assert END in page
    assert with_table(page) == page, "run python -m headway.kernels.roofline --write"


def test_every_kernel_has_a_launch_in_the_table() -> None:
    page = README.read_text()
    for case in cases():
        assert f"| {case.kernel} | {case.label} |" in page


def test_a_launch_takes_the_slower_of_memory_and_arithmetic() -> None:
    for peak in PEAKS:
        for case in cases():
            seconds = peak.seconds(case)
            assert seconds >= case.counts.bytes_moved / peak.bytes
            assert seconds >= case.counts.flops / peak.operations[case.unit]
