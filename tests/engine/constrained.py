"""A tiny random model over single bytes, and requests that are held to a form beside such that are not."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jsonschema
from tests.engine.test_torch_runner import CONFIG, RandomCheckpoint

from headway.engine.engine import Engine
from headway.engine.grammar_source import choice_source, grammar_source, json_schema_source, regex_source
from headway.engine.interfaces import Runner, Tokenizer
from headway.engine.limits import StepLimits
from headway.engine.memory_settings import MemorySettings
from headway.engine.policy import Fcfs
from headway.engine.scripted import EOS, ByteTokenizer
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import FinishReason, RequestSpec, Sampling

BYTES = replace(CONFIG, eos_token_ids=frozenset({EOS}), max_position=256)
"""300 tokens, of which 260 have a meaning."""
GREEDY = Sampling(temperature=0.0)
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["new", "old"]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


class AnyBytes(ByteTokenizer):
    """Bytes, and a question mark for every token beyond."""

    def token_bytes(self, token_id: int) -> bytes:
        return super().token_bytes(token_id) if token_id < self.vocab_size else b"?"


class ByteCheckpoint(RandomCheckpoint):
    def tokenizer(self) -> Tokenizer:
        return AnyBytes()


@dataclass(frozen=True)
class Form:
    source: str
    fits: Callable[[str], object]


def _fits_schema(schema: dict[str, Any]) -> Callable[[str], object]:
    def fits(text: str) -> object:
        jsonschema.validate(json.loads(text), schema)
        return True

    return fits


def _fits_regex(pattern: str) -> Callable[[str], object]:
    return lambda text: re.fullmatch(pattern, text)


NUMBERS = '"(" [0-9]{1,3} ("," [0-9]{1,3}){0,2} ")"'
FORMS = {
    "schema": Form(json_schema_source(PERSON), _fits_schema(PERSON)),
    "regex": Form(regex_source("[A-Z]{2}-[0-9]{4}(x|yz)?"), _fits_regex("[A-Z]{2}-[0-9]{4}(x|yz)?")),
    "choice": Form(choice_source(["yes", "no", "perhaps not"]), _fits_regex("yes|no|perhaps not")),
    "ebnf": Form(grammar_source(f"root ::= {NUMBERS}"), _fits_regex(r"\(\d{1,3}(,\d{1,3}){0,2}\)")),
    "lark": Form(grammar_source('start: "a" start "b" | "c"'), lambda text: len(text.strip("ab")) == 1),
}
PARAMETERS = (
    GREEDY,
    Sampling(temperature=1.0, seed=3),
    Sampling(temperature=0.9, seed=-4, top_p=0.9, repetition_penalty=1.2, logprobs=3),
    Sampling(temperature=1.0, seed=5, top_k=20, min_tokens=6, logit_bias=((ord("7"), 3.0),)),
    Sampling(temperature=0.0, frequency_penalty=0.5, ignore_eos=True),
    Sampling(temperature=1.2, seed=6, min_p=0.02, stop_token_ids=frozenset({ord("5")}), min_tokens=90),
)


def requests() -> list[RequestSpec]:
    """Each form with each parameters, and as many free ones."""
    specs: list[RequestSpec] = []
    for place, sampling in enumerate(PARAMETERS):
        prompt = tuple(b"question %d: " % place)
        for name, form in FORMS.items():
            held = replace(sampling, grammar=form.source)
            specs.append(RequestSpec(f"{name} {place}", 0, prompt, held, 100))
        free = replace(sampling, stop_token_ids=frozenset(), min_tokens=min(20, sampling.min_tokens))
        specs.append(RequestSpec(f"free {place}", 0, prompt, free, 20))
    return specs


@dataclass
class Told:
    """What one request brought."""

    tokens: list[int]
    text: str = ""
    reason: FinishReason | None = None
    error: str | None = None


def answers(
    runner: Runner,
    specs: Sequence[RequestSpec],
    *,
    looks_ahead: bool = False,
    max_draft_tokens: int = 0,
    memory: MemorySettings | None = None,
    limits: StepLimits | None = None,
    counts: dict[str, float] | None = None,
) -> dict[str, Told]:
    """All requests to their ends, a few new ones at each step; ``counts`` gets the engine's own."""
    engine = Engine(
        runner,
        AnyBytes(),
        limits=limits or StepLimits(max_step_tokens=64, max_sequences=8, min_chunk_tokens=4),
        policy=Fcfs(),
        looks_ahead=looks_ahead,
        max_draft_tokens=max_draft_tokens,
        memory=memory,
    )
    told = {spec.request_id: Told(list(spec.generated_token_ids)) for spec in specs}
    waiting, now = list(specs), 0.0
    while waiting or engine.has_work:
        for spec in waiting[:3]:
            engine.add(spec)
        del waiting[:3]
        for output in engine.step(now):
            one = told[output.key.request_id]
            one.tokens += output.token_ids
            one.text += output.text
            if output.finish_reason is not None:
                one.reason, one.error = output.finish_reason, output.error_message
        now += 1.0
    engine.check_books()
    engine.close()
    if counts is not None:
        counts |= engine.load.extra
    return told


def check_forms(told: dict[str, Told]) -> None:
    """Every held answer that ended by itself has its form; no other end is possible but a stop token's."""
    for name, one in told.items():
        kind = name.split()[0]
        if kind == "free":
            continue
        stops = [token for token in one.tokens if token == ord("5")]
        if name.endswith(" 5") and stops and one.tokens[-1] == ord("5"):
            continue
        assert one.reason is FinishReason.STOP, f"{name}: {one}"
        assert FORMS[kind].fits(one.text), f"{name}: {one.text!r}"
        assert one.tokens[-1] in {EOS, *AnyBytes.eos_token_ids}


def byte_runner(**options: Any) -> TorchRunner:
    defaults: dict[str, Any] = {"dtype": "float32", "kv_cache_bytes": 2_000_000, "block_size": 4}
    return TorchRunner.load(ByteCheckpoint(BYTES), **{**defaults, **options})
