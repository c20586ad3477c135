"""The demo model's answers to 20 schemas: JSON that each schema allows, every time."""

from __future__ import annotations

import json
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from tests.native_kernels import CACHE_DIR, native_library

from headway.engine.checkpoint import open_checkpoint
from headway.engine.cpu_kernels import CpuSettings
from headway.engine.engine import Engine
from headway.engine.grammar_source import json_schema_source
from headway.engine.interfaces import Tokenizer
from headway.engine.limits import StepLimits
from headway.engine.model_source import resolve_model
from headway.engine.policy import Fcfs
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import FinishReason, RequestSpec, Sampling

SCHEMAS_FILE = Path(__file__).resolve().parents[2] / "ops" / "bench" / "structured_schemas.json"
SCHEMAS: list[dict[str, Any]] = json.loads(SCHEMAS_FILE.read_text("utf-8"))
EXACT: list[dict[str, Any]] = json.loads(SCHEMAS_FILE.read_text("utf-8"), parse_float=Decimal)
"""The same for the judge, whose floats would call 40.55 no multiple of 0.01."""
MOST_TOKENS = 400


@pytest.fixture(scope="module")
def model() -> tuple[TorchRunner, Tokenizer]:
    native_library()
    checkpoint = open_checkpoint(resolve_model("smollm2-135m").path)
    torch.set_num_threads(2)
    runner = TorchRunner.load(
        checkpoint,
        dtype="bfloat16",
        kv_cache_bytes=256 << 20,
        max_model_len=1024,
        cpu=CpuSettings("native", "int8", CACHE_DIR),
    )
    return runner, checkpoint.tokenizer()


def invalid(model: tuple[TorchRunner, Tokenizer], seeds: Iterable[int]) -> list[str]:
    """What does not keep to its schema, of one answer for each schema and seed."""
    runner, tokenizer = model
    engine = Engine(runner, tokenizer, limits=StepLimits(max_sequences=16), policy=Fcfs(), max_draft_tokens=4)
    text: dict[str, str] = {}
    reasons: dict[str, FinishReason] = {}
    schemas: dict[str, Any] = {}
    for case, exact in zip(SCHEMAS, EXACT, strict=True):
        prompt = tokenizer.render_chat([{"role": "user", "content": case["prompt"] + " Answer in JSON."}])
        source = json_schema_source(case["schema"])
        for seed in seeds:
            name = f"{case['name']} {seed}"
            sampling = Sampling(temperature=1.0 if seed else 0.0, seed=seed, grammar=source)
            engine.add(RequestSpec(name, 0, prompt, sampling, MOST_TOKENS))
            text[name], schemas[name] = "", exact["schema"]
    while engine.has_work:
        for output in engine.step(0.0):
            text[output.key.request_id] += output.text
            if output.finish_reason is not None:
                reasons[output.key.request_id] = output.finish_reason
    engine.check_books()
    wrong: list[str] = []
    for name, answer in text.items():
        try:
            assert reasons[name] is FinishReason.STOP
            jsonschema.validate(json.loads(answer, parse_float=Decimal), schemas[name])
        except (AssertionError, ValueError, jsonschema.ValidationError) as error:
            wrong.append(f"{name}: {reasons[name]} {answer!r} {str(error).splitlines()[:1]}")
    return wrong


def test_each_of_20_schemas_is_kept(model: tuple[TorchRunner, Tokenizer]) -> None:
    assert len(SCHEMAS) == 20
    assert invalid(model, (0,)) == []


@pytest.mark.soak
def test_200_of_200_answers_keep_to_their_schema(model: tuple[TorchRunner, Tokenizer]) -> None:
    assert invalid(model, range(1, 11)) == []
