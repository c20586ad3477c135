"""What a simulated device can do: swaps beside the steps, or in their way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headway.services.simulate import simulate
from headway.services.simulate_settings import SimulateSettings
from headway.services.simulated_device import THIS_MACHINE, find_device

CALIBRATION: dict[str, Any] = {
    "model": "smollm2-135m",
    "coefficients": {"a": 0.02, "b": 1e-4, "c": 1e-6, "q": 0},
    "kv_tokens": 50_000,
    "max_model_len": 3500,
}


def settings(tmp_path: Path, **measured: object) -> SimulateSettings:
    file = tmp_path / "calibration.json"
    file.write_text(json.dumps({**CALIBRATION, **measured}))
    return SimulateSettings(
        policies=("fair",),
        hardware=THIS_MACHINE,
        model="smollm2-135m",
        calibration=file,
        rate=8.0,
        duration=10.0,
        prompt_tokens=100,
        answer_tokens=100,
        max_tokens=400,
        kv_tokens=4000,
        host_kv_tokens=50_000,
        is_overcommitted=True,
        preemption="swap",
        max_sequences=32,
    )


def test_a_measured_machine_copies_as_fast_as_it_did_and_in_the_way_of_its_steps(tmp_path: Path) -> None:
    device = find_device(settings(tmp_path, host_bandwidth=3e9))
    assert (device.host_bandwidth, device.copies_beside) == (3e9, False)
    assert find_device(settings(tmp_path, copies_beside=True)).copies_beside


def test_a_step_waits_for_its_swaps_where_the_device_makes_them_itself(tmp_path: Path) -> None:
    slow = {"host_bandwidth": 1e8}
    beside, in_the_way = (
        simulate(settings(tmp_path, copies_beside=copies_beside, **slow)).runs["fair"]
        for copies_beside in (True, False)
    )
    assert beside.extra["preemptions_swap"] > 0
    assert in_the_way.extra["preemptions_swap"] > 0
    for run, waits in ((beside, False), (in_the_way, True)):
        decodes = [step for step in run.timeline.steps if sum(step.tokens) == len(step.keys)]
        longest = max(step.real_seconds for step in decodes)
        assert (longest > 0.06) == waits, "100 tokens of 46 KB at 100 MB/s take 46 ms a direction"
    assert beside.extra["swap_real_seconds"] == pytest.approx(beside.extra["swap_predicted_seconds"], rel=0.3)
