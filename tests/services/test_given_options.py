"""Nothing is accepted and ignored: an option that says nothing beside the others is refused, by its name."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headway.services.cli import app
from headway.services.errors import UsageError

TUNE = ["tune", "--trace", "t.csv", "--slo-ttft", "1s", "--slo-tpot", "100ms"]
IGNORED = (
    (["bench", "--burstiness", "3"], "--arrivals burst"),
    (["bench", "--arrivals", "burst", "--on", "3s"], "--arrivals on-off"),
    (["bench", "--off", "3s"], "--arrivals on-off"),
    (["bench", "--concurrency", "2", "--rate", "3"], "closed loop"),
    (["bench", "--concurrency", "2", "--arrivals", "poisson"], "closed loop"),
    (["bench", "--trace", "t.csv", "--rate-scale", "2", "--rate", "3"], "--rate-scale"),
    (["bench", "--trace", "t.csv", "--prompt-tokens", "3"], "--length-scale"),
    (["bench", "--length-scale", "0.5"], "--trace"),
    (["bench", "--tenants", "t.toml", "--deadline", "3s"], "--tenants"),
    (["bench", "--most-points", "3"], "--find-knee"),
    (["bench", "--slow-rate", "512"], "--slow-readers"),
    (["bench", "--url", "unix:///nowhere", "--count-events"], "tells the tokens"),
    (["bench", "--seed", "3", "compare", "one.json"], "options of its own"),
    (["calibrate", "here.json", "--worker", "http://127.0.0.1:1", "--threads", "2"], "--worker"),
    ([*TUNE, "--rate", "2", "--rate-scale", "2"], "one of the two"),
    ([*TUNE, "--hardware", "h100", "--threads", "2"], "another machine"),
    ([*TUNE, "--no-confirm", "--confirm-duration", "3s"], "nothing is confirmed"),
    ([*TUNE, "--no-confirm", "--calibration", "c.json", "--dtype", "float32"], "--calibration"),
    (["simulate", "--duration", "3s", "--burstiness", "2"], "--arrivals burst"),
    (["simulate", "--trace", "t.csv", "--rate", "2"], "--rate-scale"),
    (["simulate", "--trace", "t.csv", "--answer-tokens", "2"], "--trace"),
    (["simulate", "--duration", "3s", "--calibration", "c.json"], "--hardware this-machine"),
    (["simulate", "--duration", "3s", "--coefficients", "1,1,1", "--hardware", "h100"], "--coefficients"),
    (["simulate", "--duration", "3s", "--host-bandwidth", "1GB"], "--host-kv-tokens"),
)


@pytest.mark.parametrize(("arguments", "told"), IGNORED, ids=lambda value: " ".join(value)[-40:])
def test_an_option_that_would_be_ignored_is_refused_and_says_beside_what(
    arguments: list[str], told: str
) -> None:
    with pytest.raises(UsageError, match="would be ignored") as refused:
        CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert told in f"{refused.value} {refused.value.hint}"


def test_what_the_environment_sets_for_other_commands_is_no_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWAY_MODEL", "scripted")
    monkeypatch.setenv("HEADWAY_THREADS", "2")
    arguments = ["calibrate", str(tmp_path / "c.json"), "--seconds", "1", "--worker", "http://127.0.0.1:1"]
    with pytest.raises(Exception, match=r"127\.0\.0\.1:1"):
        CliRunner().invoke(app, arguments, catch_exceptions=False)
