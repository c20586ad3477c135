"""In CI, a test that is skipped for what is not installed has failed: nobody reads what was skipped.

Hooks of pytest, for ``conftest.py``. Elsewhere skips stay skips; so do those for what a machine is (its CPU,
no GPU), which no set-up can mend.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from typing import Any

import pytest

NOT_INSTALLED = re.compile(r"could not import|not installed")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A whole file that skips itself: ``importorskip`` at its top."""
    report = yield
    fail_if_missing(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """One test, by a mark or in its course."""
    report = yield
    fail_if_missing(report)
    return report


def fail_if_missing(report: pytest.CollectReport | pytest.TestReport) -> None:
    """Make a failure of a skip for what is not installed, where CI is set."""
    if not os.environ.get("CI") or report.outcome != "skipped":
        return
    told: Any = report.longrepr  # (file, line, reason) of a skip
    reason = str(told[-1]) if isinstance(told, tuple) else str(told)
    if NOT_INSTALLED.search(reason):
        report.outcome = "failed"
        report.longrepr = f"{reason.removeprefix('Skipped: ')}: CI must not skip its tests (see ops/setup)"
