"""Our histogram says what the client library's own would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from headway.gateway.latency_histogram import LatencyHistogram
from headway.services.metrics import STEP_BUCKETS


def without_created(text: bytes) -> list[str]:
    return [line for line in text.decode().splitlines() if "_created" not in line]


@given(st.lists(st.sampled_from((0.0, 0.001, 0.0011, 0.05, 0.3, 10.0, 11.0)) | st.floats(0, 20)))
def test_a_scrape_cannot_tell_it_from_the_librarys(values: list[float]) -> None:
    own, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = LatencyHistogram("itl_seconds", "Gaps", {"model": "m"}, STEP_BUCKETS, own)
    other = Histogram("itl_seconds", "Gaps", ("model",), registry=theirs, buckets=STEP_BUCKETS).labels("m")
    for value in values:
        histogram.observe(value)
        other.observe(value)
    assert without_created(generate_latest(own)) == without_created(generate_latest(theirs))
