"""The device of a simulation: named hardware, fitted coefficients, or this machine as it was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from headway.services.calibration import Calibration, read_calibration
from headway.services.errors import UsageError
from headway.services.hardware import GPUS, MODELS, Coefficients, Hardware, Roofline
from headway.services.simulate_settings import SimulateSettings
from headway.services.step_times import MeasuredMachine, StepLine

THIS_MACHINE: Final = "this-machine"
_COPY_BANDWIDTH: Final = 10e9
"""Bytes per second of a swap where nothing measured it; --host-bandwidth says better."""


@dataclass(frozen=True, slots=True)
class Device:
    """What the scheduler runs on."""

    name: str
    hardware: Hardware
    kv_tokens: int
    max_model_len: int
    kv_bytes_per_token: int
    host_bandwidth: float
    """Bytes per second, each way."""
    copies_beside: bool = True
    """Whether swaps run beside the computation; else a step waits for its own."""
    before_seconds: float = 0.0
    """From a request's sending until the engine knows of it."""
    after_seconds: float = 0.0
    """From a step's end until the client has its token."""


def find_device(settings: SimulateSettings) -> Device:
    """The hardware by name, by coefficients, or as measured on this machine."""
    if settings.coefficients is not None:
        kv_tokens = settings.kv_tokens or 1 << 20
        return _device(settings, "coefficients", settings.coefficients, kv_tokens, kv_tokens)
    if settings.hardware == THIS_MACHINE:
        return _this_machine(settings)
    if settings.hardware not in GPUS:
        raise UsageError(
            f"there is no hardware {settings.hardware}", hint=f"one of {', '.join(GPUS)}, {THIS_MACHINE}"
        )
    if settings.model not in MODELS:
        raise UsageError(f"there is no model {settings.model}", hint=f"one of {', '.join(MODELS)}")
    model = MODELS[settings.model]
    gpus = settings.tensor_parallel or model.tensor_parallel
    try:
        roofline = Roofline(GPUS[settings.hardware], model, gpus)
    except ValueError as error:
        raise UsageError(str(error)) from None
    name = f"{gpus} {settings.hardware}" if gpus > 1 else settings.hardware
    return Device(
        f"{name} with {model.name}",
        roofline,
        settings.kv_tokens or roofline.kv_tokens,
        model.max_model_len,
        model.kv_bytes_per_token,
        settings.host_bandwidth or gpus * roofline.gpu.host_bandwidth,
    )


def device_of(calibration: Calibration, seed: int) -> Device:
    """What was measured, without the way through a file."""
    return Device(
        f"{THIS_MACHINE} with {calibration.model}",
        MeasuredMachine(calibration.line, seed),
        calibration.kv_tokens,
        min(calibration.kv_tokens, calibration.max_model_len),
        calibration.kv_bytes_per_token,
        calibration.host_bandwidth or _COPY_BANDWIDTH,
        calibration.copies_beside,
        calibration.before_seconds,
        calibration.after_seconds,
    )


def _this_machine(settings: SimulateSettings) -> Device:
    """What ``headway calibrate`` measured here, or a file with four coefficients by hand."""
    if settings.calibration is None:
        raise UsageError(
            "what this machine can do is not measured yet",
            hint="headway calibrate FILE, then --calibration FILE",
        )
    read = read_calibration(settings.calibration)
    try:
        fitted = _hardware(read, settings.seed)
        kv_tokens = settings.kv_tokens or int(read["kv_tokens"])
        longest = min(kv_tokens, int(read["max_model_len"]))
        device = _device(settings, f"{THIS_MACHINE} with {read['model']}", fitted, kv_tokens, longest)
        bandwidth = settings.host_bandwidth or float(read.get("host_bandwidth") or _COPY_BANDWIDTH)
        return replace(
            device,
            kv_bytes_per_token=int(read.get("kv_bytes_per_token", device.kv_bytes_per_token)),
            host_bandwidth=bandwidth,
            copies_beside=bool(read.get("copies_beside", False)),
            before_seconds=float(read.get("before_seconds", 0.0)),
            after_seconds=float(read.get("after_seconds", 0.0)),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{settings.calibration} is no calibration: {error!r}") from None


def _hardware(read: Mapping[str, Any], seed: int) -> Hardware:
    if "line" in read:
        return MeasuredMachine(StepLine.from_json(read["line"]), seed)
    return Coefficients(*(float(read["coefficients"][name]) for name in ("a", "b", "c", "q")))


def _device(settings: SimulateSettings, name: str, fitted: Hardware, kv_tokens: int, longest: int) -> Device:
    """A device known by its step time only; the size of its KV is that of the model by name."""
    model = MODELS.get(settings.model, MODELS["llama-3.1-8b"])
    bandwidth = settings.host_bandwidth or _COPY_BANDWIDTH
    return Device(name, fitted, kv_tokens, longest, model.kv_bytes_per_token, bandwidth)
