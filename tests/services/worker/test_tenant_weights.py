"""Shares as an operator writes them."""

from __future__ import annotations

import pytest

from headway.services.errors import UsageError
from headway.services.model_host import build_engine
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
