"""A small edition of ``make conformance``: a few generated calls of every operation."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conformance.generated import Round, Target, run_round
from tests.conformance.service import OPERATOR, Service


@pytest.mark.parametrize("is_admin", [False, True])
def test_generated_calls_meet_no_server_error_and_what_the_document_says(
    service: Service, tmp_path: Path, is_admin: bool
) -> None:
    target = Target(service.url, "tiny", service.key, OPERATOR)
    found = run_round(target, Round(seed=1, phases="fuzzing", examples=2, is_admin=is_admin), tmp_path)
    assert not found.reports, "\n".join(found.reports)
    assert found.calls >= (10 if is_admin else 50)
    assert found.by_class()["2xx"] >= 5
