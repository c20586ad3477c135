"""The command's contract: one object with a ``policies`` list, repeatable, and errors that say what to do."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import missing
from tests.services.simulate.conftest import Simulate
from typer.testing import CliRunner

from headway.engine.scheduler import Scheduler
from headway.services.cli import app
from headway.services.errors import ServiceError, StartError, UsageError
from headway.services.policies import POLICY_NAMES
from headway.services.settings import WorkerSettings
from headway.services.simulate_settings import SimulateSettings
from headway.services.simulated_device import find_device
from headway.services.simulated_scheduler import build_scheduler

FIGURES = (
    "ttft_seconds",
    "tpot_seconds",
    "itl_seconds",
    "goodput_per_second",
    "jain_index",
    "preemptions",
    "ttft_attainment",
    "tpot_attainment",
)


def without_cpu(figures: dict[str, Any]) -> dict[str, Any]:
    """All but the one figure that a clock of this machine measured."""
    policies = [{**policy, "cpu_seconds": None} for policy in figures["policies"]]
    return {**figures, "policies": policies}


def test_the_contract_of_the_json_object(trace: Path, simulate: Simulate) -> None:
    command = f"--trace {trace} --rate-scale 2 --policy priority --policy fcfs --hardware h100"
    figures = simulate(*command.split(), "--model", "llama-3.1-8b")
    assert [policy["policy"] for policy in figures["policies"]] == ["priority", "fcfs"]
    assert figures["arrivals"]["requests"] == 80
    assert figures["arrivals"]["span_seconds"] == pytest.approx(19.75 / 2, abs=0.01)
    for policy in figures["policies"]:
        assert policy["requests"] == policy["finished"] == 80
        assert all(name in policy for name in FIGURES)
        for name in ("ttft_seconds", "tpot_seconds", "itl_seconds"):
            assert (
                0 < policy[name]["p50"] <= policy[name]["p95"] <= policy[name]["p99"] <= policy[name]["max"]
            )


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_the_same_seed_gives_the_same_figures_for_every_policy(policy: str, simulate: Simulate) -> None:
    command = f"--policy {policy} --arrivals burst --rate 6 --duration 12s --seed 3".split()
    first, again, other = simulate(*command), simulate(*command), simulate(*command, "--seed", "4")
    assert without_cpu(first) == without_cpu(again)
    assert without_cpu(first) != without_cpu(other)
    assert first["policies"][0]["finished"] == first["arrivals"]["requests"] > 20


def test_all_policies_see_the_same_requests(simulate: Simulate) -> None:
    every = [part for name in POLICY_NAMES for part in ("--policy", name)]
    figures = simulate(*every, "--rate", "8", "--duration", "10s")
    assert {policy["requests"] for policy in figures["policies"]} == {figures["arrivals"]["requests"]}
    assert len(figures["policies"]) == len(POLICY_NAMES)


def test_tenants_classes_and_deadlines_come_from_a_file(tmp_path: Path, simulate: Simulate) -> None:
    tenants = tmp_path / "tenants.toml"
    tenants.write_text("""
[tenant.big]
share = 9
weight = 3
shared_prefix_tokens = 64
[tenant.small]
classes = { interactive = 0.5, batch = 0.5 }
deadlines = { interactive = "10ms", batch = 3600 }
""")
    figures = simulate("--tenants", str(tenants), "--rate", "10", "--duration", "20s")
    big, small = figures["policies"][0]["tenants"]
    assert (big["tenant"], big["weight"], small["tenant"], small["weight"]) == ("big", 3.0, "small", 1.0)
    assert big["requests"] > 5 * small["requests"] > 0
    assert big["past_deadline"] == 0
    # The interactive half cannot be done in 10 ms; the batch half has an hour.
    assert 0 < small["past_deadline"] + small["refused"] < small["requests"]
    assert 0 < figures["policies"][0]["jain_index"] < 0.9


@pytest.mark.parametrize("preemption", ["cost", "swap", "recompute"])
def test_short_memory_is_shared_by_preemption_and_everything_still_finishes(
    preemption: str, simulate: Simulate
) -> None:
    command = "--policy fair --rate 30 --duration 2s --kv-tokens 2400 --max-tokens 900 --overcommit"
    command += f" --host-kv-tokens 40000 --preemption {preemption} --prompt-tokens 150 --answer-tokens 60"
    (policy,) = simulate(*command.split())["policies"]
    assert policy["finished"] + policy["refused"] == policy["requests"] > 20
    assert policy["preemptions"] > 0
    counters = policy["scheduler"]
    if preemption == "recompute":
        assert counters["preemptions_swap"] == 0
    if preemption == "swap":
        assert counters["preemptions_swap"] > 0


def test_without_json_it_is_a_table(trace: Path) -> None:
    result = CliRunner().invoke(app, ["simulate", "--trace", str(trace), "--policy", "fcfs"])
    assert result.exit_code == 0
    assert "TTFT, P99" in result.stdout
    assert "80 requests" in result.stdout


def test_fitted_coefficients_replace_the_named_hardware(trace: Path, simulate: Simulate) -> None:
    slow = simulate("--trace", str(trace), "--coefficients", "0.1,1e-6,0,0")
    assert slow["hardware"]["coefficients"] == {"a": 0.1, "b": 1e-6, "c": 0.0, "q": 0.0}
    assert slow["policies"][0]["itl_seconds"]["p50"] == pytest.approx(0.1, rel=0.1)


def test_this_machine_is_simulated_by_its_calibration(
    tmp_path: Path, trace: Path, simulate: Simulate
) -> None:
    calibration = tmp_path / "calibration.json"
    calibration.write_text(
        '{"model": "smollm2-135m", "coefficients": {"a": 0.02, "b": 1e-4, "c": 1e-6, "q": 0},'
        ' "kv_tokens": 50000, "max_model_len": 3500}'
    )
    figures = simulate("--trace", str(trace), "--hardware", "this-machine", "--calibration", str(calibration))
    assert figures["hardware"]["name"] == "this-machine with smollm2-135m"
    assert figures["hardware"]["kv_tokens"] == 50000
    assert figures["policies"][0]["finished"] == 80


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--policy", "best"], "no policy best"),
        (["--hardware", "tpu"], "no hardware tpu"),
        (["--model", "gpt-5"], "no model gpt-5"),
        (["--model", "llama-3.1-70b", "--tensor-parallel", "1"], "does not fit"),
        (["--arrivals", "trace"], "needs --trace"),
        (["--arrivals", "poisson"], "needs --duration"),
        (["--preemption", "swap", "--duration", "5s"], "nowhere to swap to"),
        (["--trace", "/nowhere.csv"], "cannot read the trace"),
        (["--tenants", "/nowhere.toml", "--duration", "5s"], "cannot read the tenants"),
        (["--hardware", "this-machine"], "not measured"),
        (["--duration", "5s", "--rate", "0.00001"], "no request comes"),
        (["--duration", "5s", "--max-batch-tokens", "8"], "max_step_tokens"),
        (["--duration", "1m", "--rate", "1e9"], "about 6e\\+10 requests would come, more than 1,000,000"),
        (["--duration", "1m", "--rate", "inf"], "about inf requests"),
        (["--duration", "5s", "--kv-tokens", "1000000000000"], "--kv-tokens .* blocks, more than"),
        (["--duration", "5s", "--host-kv-tokens", "1000000000000"], "--host-kv-tokens .* blocks, more than"),
        (["--duration", "5s", "--policy", "fixed-chunks", "--quantum", "9"], "which fixed-chunks is not"),
        (["--duration", "5s", "--age-limit", "0s"], "age_limit_seconds is 0.0"),
        (["--duration", "5s", "--host-kv-tokens", "64", "--host-bandwidth", "0"], "--host-bandwidth is 0"),
    ],
)
def test_what_cannot_be_simulated_is_a_usage_error(arguments: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says) as raised:
        CliRunner().invoke(app, ["simulate", *arguments], catch_exceptions=False)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    "text", ["1", "a,b,c", "1,2,3,4,5", "-1,1,1", "0,0,1", "nan,1,1", "inf,1,1", "1e300,0,0"]
)
def test_bad_coefficients_are_a_usage_error_that_shows_the_form(text: str) -> None:
    result = CliRunner().invoke(app, ["simulate", f"--coefficients={text}"])
    assert result.exit_code == 2
    assert "a,b,c,q" in result.output


@pytest.mark.parametrize("name", ["plot.png", "plot.svg"])
def test_a_plot_is_drawn_when_asked(name: str, tmp_path: Path, simulate: Simulate) -> None:
    if find_spec("matplotlib") is None:
        missing("matplotlib")
    simulate("--rate", "5", "--duration", "5s", "--plot", str(tmp_path / name))
    start = (tmp_path / name).read_bytes()[:200]
    assert start.startswith(b"\x89PNG") if name.endswith("png") else b"<?xml" in start


@pytest.mark.parametrize("name", ["plot.gif", "missing/plot.png"])
def test_a_plot_that_cannot_be_drawn_fails_before_anything_is_simulated(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot draw"):
        CliRunner().invoke(app, ["simulate", "--plot", str(tmp_path / name)], catch_exceptions=False)


def test_without_the_extra_a_plot_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> object:
        return None if name == "matplotlib" else find_spec(name)

    monkeypatch.setattr("headway.services.simulation_plot.find_spec", find)
    with pytest.raises(StartError) as raised:
        CliRunner().invoke(app, ["simulate", "--plot", str(tmp_path / "a.png")], catch_exceptions=False)
    assert isinstance(raised.value, ServiceError)
    assert "headway[plot]" in str(raised.value.hint)


def test_the_command_line_reads_its_defaults_without_loading_the_simulator() -> None:
    code = (
        "import sys, headway.services.cli; "
        "print([m for m in sys.modules if 'simulation' in m or m.startswith(('headway.engine', 'pydantic'))])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


def test_what_is_simulated_by_default_is_what_a_worker_does_by_default(simulate: Simulate) -> None:
    (policy,) = simulate("--rate", "5", "--duration", "2s")["policies"]
    assert policy["policy"] == WorkerSettings().policy


def test_a_timeline_that_cannot_be_written_fails_before_anything_is_simulated(tmp_path: Path) -> None:
    arguments = ["simulate", "--timeline", str(tmp_path / "missing" / "t.json"), "--trace", "/nowhere.csv"]
    with pytest.raises(UsageError, match="no folder"):
        CliRunner().invoke(app, arguments, catch_exceptions=False)


@pytest.mark.parametrize("policy", POLICY_NAMES)
def test_the_whole_scheduler_is_told_the_weights_so_that_they_count_for_the_cache_too(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, float]] = []

    def tell(scheduler: Scheduler, tenant: str, weight: float) -> None:
        told.append((tenant, weight))

    monkeypatch.setattr(Scheduler, "set_weight", tell)
    settings = SimulateSettings()
    build_scheduler(settings, policy, find_device(settings), {"gold": 3.0})
    assert told == [("gold", 3.0)]
