"""An engine on the toy runner, requests for it, and runs to their end."""

from __future__ import annotations

from collections.abc import Sequence

from headway.engine.engine import Engine
from headway.engine.limits import StepLimits
from headway.engine.policy import Fcfs
from headway.engine.scripted import ByteTokenizer, ScriptedRunner
from headway.engine.values import FinishReason, Output, RequestSpec, Sampling

GREEDY = Sampling(temperature=0)
BANG = Sampling(temperature=0, stop_token_ids=frozenset(b"!"))
TOKENIZER = ByteTokenizer()


def make_engine(runner: ScriptedRunner | None = None, limits: StepLimits | None = None) -> Engine:
    return Engine(runner or ScriptedRunner(), TOKENIZER, limits=limits or StepLimits(), policy=Fcfs())


def saying(text: str | bytes) -> ScriptedRunner:
    """A runner that answers every prompt with this text, then EOS."""
    answer = text.encode() if isinstance(text, str) else text
    return ScriptedRunner(answer=lambda _: tuple(answer))


def ask(
    name: str = "a", text: str = "hello", max_tokens: int = 8, sampling: Sampling = GREEDY
) -> RequestSpec:
    prompt = TOKENIZER.encode(text, add_special_tokens=True)
    return RequestSpec(name, 0, prompt, sampling, max_tokens)


def run(engine: Engine, now: float = 0.0) -> dict[str, list[Output]]:
    """Step to the end; all outputs by request."""
    outputs: dict[str, list[Output]] = {}
    while engine.has_work:
        for output in engine.step(now):
            outputs.setdefault(output.key.request_id, []).append(output)
        engine.check_books()
    assert engine.load.kv_blocks_used == 0
    return outputs


def run_one(engine: Engine, spec: RequestSpec) -> tuple[str, tuple[int, ...], FinishReason | None]:
    engine.add(spec)
    outputs = run(engine)[spec.request_id]
    assert [output.finish_reason for output in outputs[:-1]] == [None] * (len(outputs) - 1)
    return text_of(outputs), tokens_of(outputs), outputs[-1].finish_reason


def text_of(outputs: Sequence[Output]) -> str:
    return "".join(output.text for output in outputs)


def tokens_of(outputs: Sequence[Output]) -> tuple[int, ...]:
    return tuple(token for output in outputs for token in output.token_ids)
