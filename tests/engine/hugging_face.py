"""Hugging Face's model of the demo model's file, to compare with."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from headway.engine.checkpoint import Checkpoint


def reference_model(path: Path) -> Any:
    """In float32, with the shape and weights that transformers reads from the same file.

    The parts of ``from_pretrained(folder, gguf_file=...)``, which as a whole asks for the accelerate package.
    """
    modeling_gguf = importlib.import_module("transformers.modeling_gguf_pytorch_utils")
    model = _empty(path)
    return _filled(
        model,
        modeling_gguf.load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)["tensors"],
    )


def same_weights_model(path: Path, checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
    """Its computation in ``dtype`` on the weights that we read, which takes a tenth of the time."""
    weights = {name: checkpoint.tensor(name) for name in checkpoint.names()}
    return _filled(_empty(path), weights).to(dtype)


def _empty(path: Path) -> Any:
    transformers = importlib.import_module("transformers")
    config = transformers.AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def _filled(model: Any, weights: Mapping[str, torch.Tensor]) -> Any:
    absent, unknown = model.load_state_dict(weights, strict=False)
    assert absent == ["lm_head.weight"], "the head is tied to the embedding; nothing else may be left random"
    assert unknown == []
    model.tie_weights()
    return model.eval()
