"""What somebody reads whose tenant's limit is used up."""

from __future__ import annotations

import pytest

from headway.queueing.quota_values import QuotaLimit, QuotaStanding, Refusal
from headway.queueing.tenants import TenantLimits
from headway.queueing.terms import Demand, exceeded


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.25, "0.25 s"), (11.503, "11.5 s"), (119.9, "120 s"), (121.0, "3 min"), (20_700.0, "5 h 45 min")],
)
def test_a_wait_is_told_as_people_say_it(seconds: float, told: str) -> None:
    refusal = Refusal(QuotaLimit.DAILY_TOKENS, seconds, QuotaStanding(), tokens_left_today=0)
    error = exceeded("acme", Demand(5, 4), refusal, TenantLimits(daily_tokens=30))
    assert f"try again in {told};" in str(error)
