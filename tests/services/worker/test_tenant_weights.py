"""Shares, and what else an operator may set of the fair policy."""

from __future__ import annotations

import math

import pytest
from typer.testing import CliRunner

from headway.services.cli import app
from headway.services.errors import UsageError
from headway.services.fair_settings import FairSettings
from headway.services.model_host import build_engine
from headway.services.policies import PolicyName
from headway.services.settings import WorkerSettings
from headway.services.tenant_weights import parse_weights


def test_weights_are_read_by_tenant_and_nothing_is_no_weights() -> None:
    assert parse_weights("gold=3, free=0.5") == (("gold", 3.0), ("free", 0.5))
    assert parse_weights("a=b=2") == (("a=b", 2.0),)
    assert parse_weights("") == ()


@pytest.mark.parametrize("text", ["gold", "=3", "gold=", "gold=0", "gold=-1", "gold=inf", "gold=x"])
def test_what_is_no_weight_is_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(ValueError, match=r"gold=3,free=0\.5"):
        parse_weights(text)


def test_a_worker_with_one_of_two_objectives_says_what_is_missing() -> None:
    with pytest.raises(UsageError, match="--ttft and --tpot belong together"):
        build_engine(WorkerSettings(model="scripted", ttft_seconds=1.0))


@pytest.mark.parametrize("policy", ["fair", "fcfs", "priority", "static", "dynamic"])
def test_a_worker_is_built_with_every_policy_and_with_weights(policy: str) -> None:
    settings = WorkerSettings(
        model="scripted",
        policy=policy,  # type: ignore[arg-type]  # one of the names, as a parameter
        tenant_weights=(("gold", 3.0),),
        ttft_seconds=1.0,
        tpot_seconds=0.1,
    )
    assert not build_engine(settings).engine.has_work


def test_a_worker_takes_the_fair_policys_settings() -> None:
    fair = FairSettings(age_limit_seconds=5.0, quantum_tokens=0, patience_seconds=10.0)
    assert not build_engine(WorkerSettings(model="scripted", fair=fair)).engine.has_work


@pytest.mark.parametrize(
    ("policy", "fair", "says"),
    [
        ("fcfs", FairSettings(age_limit_seconds=5.0), "which fcfs is not"),
        ("priority", FairSettings(quantum_tokens=5), "which priority is not"),
        ("fair", FairSettings(age_limit_seconds=0.0), "age_limit_seconds is 0.0"),
        ("fair", FairSettings(patience_seconds=math.inf), "patience_seconds inf"),
        ("fair", FairSettings(quantum_tokens=-1), "quantum_tokens is -1"),
    ],
)
def test_settings_of_the_fair_policy_that_mean_nothing_are_refused(
    policy: PolicyName, fair: FairSettings, says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        build_engine(WorkerSettings(model="scripted", policy=policy, fair=fair))


def test_the_command_line_and_the_environment_set_the_fair_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[WorkerSettings] = []

    def run_worker(settings: WorkerSettings) -> int:
        taken.append(settings)
        return 0

    monkeypatch.setattr("headway.services.worker.run_worker", run_worker)
    monkeypatch.setenv("HEADWAY_PATIENCE", "2m")
    result = CliRunner().invoke(app, ["worker", "--age-limit", "5s", "--quantum", "0"])
    assert result.exit_code == 0, result.output
    assert taken[0].fair == FairSettings(5.0, 0, 120.0)
    assert CliRunner().invoke(app, ["worker", "--quantum", "-1"]).exit_code == 2
