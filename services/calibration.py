"""What was measured of a machine and a model, in a file: what a simulation needs to stand in for them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from headway.services.errors import UsageError
from headway.services.step_times import StepLine


@dataclass(frozen=True, slots=True)
class Calibration:
    """One model on one machine. ``before_seconds``: from a request's sending until the engine knows of it,
    ``after_seconds``: from a step's end until the client has its token; both 0 for the engine alone."""

    model: str
    line: StepLine
    kv_tokens: int
    max_model_len: int
    kv_bytes_per_token: int
    host_bandwidth: float
    """Bytes per second, each way; 0: not measured."""
    copies_beside: bool
    steps: int
    error_median: float
    before_seconds: float = 0.0
    after_seconds: float = 0.0
    machine: str = ""

    def to_json(self) -> dict[str, Any]:
        """As values of JSON; ``coefficients`` are the straight line that prices are taken from."""
        straight = self.line.coefficients
        return {
            "model": self.model,
            "machine": self.machine,
            "coefficients": {
                "a": straight.per_step,
                "b": straight.per_new_token,
                "c": straight.per_context_token,
                "q": straight.per_pair,
            },
            "line": self.line.to_json(),
            "kv_tokens": self.kv_tokens,
            "max_model_len": self.max_model_len,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "host_bandwidth": self.host_bandwidth,
            "copies_beside": self.copies_beside,
            "before_seconds": self.before_seconds,
            "after_seconds": self.after_seconds,
            "steps": self.steps,
            "error_median": round(self.error_median, 4),
        }

    def write(self, path: Path) -> None:
        """Write the file; raises UsageError when it cannot be written."""
        try:
            path.write_text(json.dumps(self.to_json(), indent=2) + "\n")
        except OSError as error:
            raise UsageError(f"cannot write {path}: {error.strerror}") from None


def read_calibration(path: Path) -> dict[str, Any]:
    """The file's values; raises UsageError when it is no file of JSON."""
    try:
        read: Any = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is no calibration: {error!r}") from None
    if not isinstance(read, dict):
        raise UsageError(f"{path} is no calibration: no object", hint="headway calibrate FILE writes one")
    return cast("dict[str, Any]", read)
