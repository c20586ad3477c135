"""What it costs to hold answers to a JSON Schema: tokens per second with and without one, in turns.

    .venv/bin/python ops/bench/structured.py [--concurrency 16] [--rounds 5] [--works sampled,greedy]
                                             [--look-ahead] [--json FILE]

Both arms answer the same prompts with as many tokens (each held answer is a list that goes on for longer), on
one runner, taking turns in each round; which goes first alternates. A ratio is that of a round, by the clock,
and the median of the rounds counts. 20 schemas are in the batch at once. Ends with 1 if more than LIMIT is
lost.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from headway.engine.checkpoint import open_checkpoint
from headway.engine.cpu_kernels import CpuSettings
from headway.engine.engine import Engine
from headway.engine.grammar_source import json_schema_source
from headway.engine.interfaces import Tokenizer
from headway.engine.limits import StepLimits
from headway.engine.model_source import resolve_model
from headway.engine.policy import Fcfs
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import RequestSpec, Sampling

LIMIT: Final = 0.10
ANSWER_TOKENS: Final = 96
SCHEMAS: Final = Path(__file__).with_name("structured_schemas.json")
WORKS: Final = {
    "sampled": Sampling(temperature=1.0, ignore_eos=True),
    "nucleus": Sampling(temperature=0.7, top_p=0.9, ignore_eos=True),
    "greedy": Sampling(temperature=0.0, ignore_eos=True),
}


@dataclass(frozen=True)
class Turn:
    """One arm's share of a round."""

    tokens: int
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds


def specs_of(tokenizer: Tokenizer, sampling: Sampling, count: int, *, held: bool) -> list[RequestSpec]:
    """``count`` requests, each as long as the other arm's."""
    cases: list[dict[str, Any]] = json.loads(SCHEMAS.read_text(encoding="utf-8"))
    specs: list[RequestSpec] = []
    for serial in range(count):
        case = cases[serial % len(cases)]
        prompt = tokenizer.render_chat([{"role": "user", "content": case["prompt"] + " Answer in JSON."}])
        schema = dict(case["schema"])
        shared = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
        endless = {"type": "array", "items": schema, "minItems": 200, **shared}
        grammar = json_schema_source(endless) if held else None
        chosen = replace(sampling, seed=serial, grammar=grammar)
        specs.append(RequestSpec(str(serial), 0, prompt, chosen, ANSWER_TOKENS))
    return specs


def run(engine: Engine, specs: Sequence[RequestSpec], concurrency: int) -> Turn:
    """Answer all of them, so many at a time. What is prepared beside the engine is not in the time."""
    for spec in specs:
        engine.check(spec)
    waiting, running, tokens = list(specs), 0, 0
    started = time.perf_counter()
    while waiting or running:
        while waiting and running < concurrency:
            engine.add(waiting.pop(0))
            running += 1
        for output in engine.step(time.perf_counter()):
            tokens += len(output.token_ids)
            running -= output.finish_reason is not None
    return Turn(tokens, time.perf_counter() - started)


def compare(
    runner: TorchRunner, tokenizer: Tokenizer, sampling: Sampling, options: argparse.Namespace
) -> dict[str, Any]:
    """The ratio of a kind of sampling over all rounds."""
    engine = Engine(
        runner,
        tokenizer,
        limits=StepLimits(max_sequences=options.concurrency),
        policy=Fcfs(),
        looks_ahead=options.look_ahead,
    )
    arms = {
        name: specs_of(tokenizer, sampling, options.requests, held=name == "held")
        for name in ("free", "held")
    }
    for specs in arms.values():
        run(engine, specs[: options.concurrency], options.concurrency)
    rounds: list[dict[str, float]] = []
    for number in range(options.rounds):
        order = ("free", "held") if number % 2 else ("held", "free")
        rounds.append({name: run(engine, arms[name], options.concurrency).rate for name in order})
    engine.close()
    ratios = [rates["held"] / rates["free"] for rates in rounds]
    return {
        "free_tokens_per_second": statistics.median(rates["free"] for rates in rounds),
        "held_tokens_per_second": statistics.median(rates["held"] for rates in rounds),
        "ratio": statistics.median(ratios),
        "ratios": [round(ratio, 4) for ratio in ratios],
    }


def main() -> int:
    """1 if a form costs more than LIMIT."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--quantization", default="auto")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--requests", type=int, default=32, help="of each arm in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--works", default="sampled,nucleus,greedy")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--look-ahead", action="store_true")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    checkpoint = open_checkpoint(resolve_model(options.model).path)
    tokenizer = checkpoint.tokenizer()
    runner = TorchRunner.load(
        checkpoint,
        kv_cache_bytes=512 << 20,
        threads=options.threads,
        max_model_len=1024,
        cpu=CpuSettings("auto", options.quantization, Path("~/.cache/headway").expanduser()),
    )
    figures = {work: compare(runner, tokenizer, WORKS[work], options) for work in options.works.split(",")}
    print(f"{options.model}, {runner.kernels}, {options.concurrency} streams of {ANSWER_TOKENS} tokens")
    for work, told in figures.items():
        rates = "{free_tokens_per_second:7.1f} tok/s free, {held_tokens_per_second:7.1f} held".format(**told)
        print(f"  {work:8} {rates}, ratio {told['ratio']:.3f}  {told['ratios']}")
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    worst = min(told["ratio"] for told in figures.values())
    if worst < 1.0 - LIMIT:
        print(f"a form costs {1.0 - worst:.1%} of the throughput, the limit is {LIMIT:.0%}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
