"""Launches of norms and activations at the shapes of real models."""

from __future__ import annotations

from functools import partial

import torch

from headway.kernels.cases import Case, Outputs, Trial, noise
from headway.kernels.gated_activation import (
    Activation,
    gated_activation_counts,
    gated_activation_launch,
    gated_activation_reference,
)
from headway.kernels.launch import Chip
from headway.kernels.rms_norm import (
    add_rms_norm_reference,
    rms_norm_counts,
    rms_norm_launch,
    rms_norm_reference,
)

EPS = 1e-5

ROUNDING = 2**-8
"""Half a step of bfloat16 either way, of the largest value."""


def _prepare_norm(device: torch.device, chip: Chip, *, rows: int, width: int, add: bool) -> Trial:
    x, residual = (noise((rows, width), torch.bfloat16, device, seed) for seed in (0, 1))
    weight = noise((width,), torch.bfloat16, device, seed=2)
    out, total = torch.empty_like(x), torch.empty_like(x)

    def launch() -> Outputs:
        extra = {"residual": residual, "total": total} if add else {}
        rms_norm_launch(x, weight, EPS, out, chip=chip, **extra).run()
        return (out, total) if add else (out,)

    def reference() -> Outputs:
        if add:
            return add_rms_norm_reference(x, residual, weight, EPS)
        return (rms_norm_reference(x, weight, EPS),)

    return Trial(launch, reference)


def _norm(label: str, rows: int, width: int, *, add: bool = False, tiny: bool = False) -> Case:
    return Case(
        kernel="residual and RMSNorm" if add else "RMSNorm",
        label=f"{label}, {rows} rows",
        counts=rms_norm_counts(rows, width, torch.bfloat16, add=add),
        prepare=partial(_prepare_norm, rows=rows, width=width, add=add),
        tiny=tiny,
        relative_tolerance=ROUNDING,
    )


def _prepare_activation(
    device: torch.device, chip: Chip, *, rows: int, width: int, activation: Activation
) -> Trial:
    gate_up = noise((rows, 2 * width), torch.bfloat16, device, seed=0)
    out = gate_up.new_empty((rows, width))

    def launch() -> Outputs:
        gated_activation_launch(gate_up, activation, out, chip=chip).run()
        return (out,)

    return Trial(launch, lambda: (gated_activation_reference(gate_up, activation),))


def _activation(
    label: str, rows: int, width: int, *, activation: Activation = "silu", tiny: bool = False
) -> Case:
    return Case(
        kernel="gated SiLU" if activation == "silu" else "gated GELU",
        label=f"{label}, {rows} rows",
        counts=gated_activation_counts(rows, width, torch.bfloat16),
        prepare=partial(_prepare_activation, rows=rows, width=width, activation=activation),
        tiny=tiny,
        relative_tolerance=ROUNDING,
    )


CASES = (
    _norm("SmolLM2 135M", 32, 576),
    _norm("Llama 3 8B", 32, 4096, add=True),
    _norm("Llama 3 8B", 2048, 4096, add=True),
    _norm("SmolLM2 135M", 32, 576, add=True),
    _activation("Llama 3 8B", 32, 14_336),
    _activation("Llama 3 8B", 2048, 14_336),
    _activation("SmolLM2 135M", 32, 1536),
    _activation("Gemma 2 9B", 32, 14_336, activation="gelu_tanh"),
    _norm("tiny", 3, 70, tiny=True),
    _norm("tiny", 3, 70, add=True, tiny=True),
    _activation("tiny", 3, 70, tiny=True),
    _activation("tiny", 3, 70, activation="gelu_tanh", tiny=True),
)
