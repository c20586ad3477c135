"""Tiny cases of all kernels in Triton's interpreter: what ``ops/gpu_check`` runs where there is no GPU."""

from __future__ import annotations

import pytest
import torch

from headway.kernels.cases import Case, cases, differences
from headway.kernels.launch import H100

pytest.importorskip("triton")


@pytest.mark.parametrize("case", cases(tiny=True), ids=lambda case: case.name)
def test_a_launch_gives_what_its_reference_gives(case: Case) -> None:
    trial = case.prepare(torch.device("cpu"), H100)
    assert differences(case, trial.launch(), trial.reference()) == []
