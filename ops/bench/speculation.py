"""Prompt lookup against plain decoding: the same answers, and how many tokens per second each makes.

    .venv/bin/python ops/bench/speculation.py [--quantization auto] [--concurrencies 1,4] [--rounds 5]
                                              [--works edit,plain,sampled]

Two engines on one runner take turns in each round, so that whatever else the machine does meets both; a ratio
is that of a round, the median of the rounds is told, by the clock and by the processor's time (which others
on the machine disturb less). Works:

    edit        a paragraph that is to be repeated, or corrected
    plain       questions, greedy
    sampled     the same questions at temperature 1: next to nothing repeats
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from headway.engine.engine import Engine
from headway.engine.interfaces import Tokenizer
from headway.engine.limits import StepLimits
from headway.engine.policy import Fcfs
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import RequestSpec, Sampling

KV_CACHE: Final = 256 << 20
ANSWER_TOKENS: Final = 96
GREEDY: Final = Sampling(temperature=0.0, ignore_eos=True)
PASSAGES: Final = (
    "The committee met on Tuesday to discuss the new library. Mrs. Harlow said that the roof was leaking in "
    "three places and that the repairs would cost about four thousand pounds. Mr. Osei replied that the "
    "money had been set aside in March, but that the builders could not begin before the end of June.",
    "def mean(values):\n    total = 0.0\n    count = 0\n    for value in values:\n        total += value\n"
    "        count += 1\n    if count == 0:\n        raise ValueError('empty')\n    return total / count\n",
    "Wash the lentils and soak them for an hour. Heat the oil in a heavy pan and fry the onion until it is "
    "golden. Add the garlic, the ginger and the cumin seeds, and stir for a minute. Pour in the lentils with "
    "a litre of water, bring them to the boil and let them simmer for forty minutes.",
    '{"order": 4711, "customer": {"name": "J. Ortega", "city": "Valencia"}, "items": [{"sku": "A-100", '
    '"quantity": 2, "price": 19.9}, {"sku": "B-205", "quantity": 1, "price": 149.0}], "paid": true}',
)
INSTRUCTIONS: Final = (
    "Repeat the following text word for word:\n\n{}",
    "Correct the spelling of this text and write the whole text again:\n\n{}",
)
QUESTIONS: Final = (
    "Why is the sky blue?",
    "Explain how a bicycle stays upright.",
    "What should I see in Lisbon in three days?",
    "Write a short story about a lighthouse keeper.",
    "How do vaccines work?",
    "What is the difference between a virus and a bacterium?",
    "Give me advice for my first job interview.",
    "Describe the water cycle to a child.",
)


@dataclass(frozen=True)
class Turn:
    """One engine's share of a round."""

    tokens: int
    seconds: float
    cpu_seconds: float
    answers: dict[str, tuple[int, ...]]


class Arm:
    """One engine that keeps what it learned from round to round."""

    def __init__(self, runner: TorchRunner, tokenizer: Tokenizer, draft_tokens: int) -> None:
        self._engine = Engine(
            runner, tokenizer, limits=StepLimits(), policy=Fcfs(), max_draft_tokens=draft_tokens
        )
        self._serial = 0

    def run(self, prompts: Sequence[tuple[int, ...]], sampling: Sampling, concurrency: int) -> Turn:
        """Answer all of them, so many at a time."""
        waiting = list(enumerate(prompts))
        names: dict[str, int] = {}
        said: dict[str, list[int]] = {}
        counted, seconds, cpu_seconds, running = 0, 0.0, 0.0, 0
        while waiting or running:
            while waiting and running < concurrency:
                place, prompt = waiting.pop(0)
                self._serial += 1
                name = f"{id(self)}-{self._serial}"
                names[name], said[name] = place, []
                self._engine.add(RequestSpec(name, 0, prompt, sampling, ANSWER_TOKENS))
                running += 1
            started, cpu_started = time.perf_counter(), time.process_time()
            outputs = self._engine.step(started)
            seconds += time.perf_counter() - started
            cpu_seconds += time.process_time() - cpu_started
            for output in outputs:
                said[output.key.request_id] += output.token_ids
                counted += len(output.token_ids)
                running -= output.finish_reason is not None
        answers = {f"{place}": tuple(said[name]) for name, place in names.items()}
        return Turn(counted, seconds, cpu_seconds, answers)

    @property
    def load(self) -> dict[str, float]:
        """What it counts."""
        load = self._engine.load
        return {"steps": float(load.steps), **load.extra}


def works(tokenizer: Tokenizer) -> dict[str, tuple[list[tuple[int, ...]], Sampling]]:
    """Prompts and sampling by name."""

    def chat(text: str) -> tuple[int, ...]:
        return tokenizer.render_chat([{"role": "user", "content": text}])

    edits = [chat(instruction.format(text)) for instruction in INSTRUCTIONS for text in PASSAGES]
    questions = [chat(question) for question in QUESTIONS]
    sampled = Sampling(temperature=1.0, seed=5, ignore_eos=True)
    return {"edit": (edits, GREEDY), "plain": (questions, GREEDY), "sampled": (questions, sampled)}


def measure(
    runner: TorchRunner,
    tokenizer: Tokenizer,
    *,
    concurrencies: Sequence[int],
    names: Sequence[str],
    rounds: int,
    draft_tokens: int,
) -> list[dict[str, object]]:
    """A row for each work and concurrency; raises RuntimeError where an answer differs."""
    rows: list[dict[str, object]] = []
    for concurrency in concurrencies:
        for work in names:
            prompts, sampling = works(tokenizer)[work]
            plain, guessing = Arm(runner, tokenizer, 0), Arm(runner, tokenizer, draft_tokens)
            pairs: list[tuple[Turn, Turn]] = []
            for number in range(rounds):
                arms = (plain, guessing) if number % 2 == 0 else (guessing, plain)
                turns = {arm: arm.run(prompts, sampling, concurrency) for arm in arms}
                pairs.append((turns[plain], turns[guessing]))
                if turns[plain].answers != turns[guessing].answers:
                    raise RuntimeError(f"{work} at {concurrency}: answers differ with and without guesses")
            rates = [(own.tokens / own.seconds) / (base.tokens / base.seconds) for base, own in pairs]
            cpu = [base.cpu_seconds / own.cpu_seconds for base, own in pairs]
            load = guessing.load
            rows.append(
                {
                    "work": work,
                    "concurrency": concurrency,
                    "plain_tokens_per_second": statistics.median(b.tokens / b.seconds for b, _ in pairs),
                    "ratio": statistics.median(rates),
                    "ratio_cpu": statistics.median(cpu),
                    "ratios": [round(rate, 3) for rate in rates],
                    "ratios_cpu": [round(rate, 3) for rate in cpu],
                    "steps": guessing.load["steps"] / plain.load["steps"],
                    "guessed": load["draft_tokens"],
                    "right": load["draft_tokens_right"],
                    "gain_seen": load["speculation_gain"],
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Load, measure, print."""
    from headway.engine.checkpoint import open_checkpoint
    from headway.engine.cpu_kernels import CpuSettings
    from headway.engine.model_source import resolve_model
    from headway.services.settings import default_cache_dir

    parser = argparse.ArgumentParser(description="Prompt lookup against plain decoding.")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--quantization", default="auto")
    parser.add_argument("--concurrencies", default="1")
    parser.add_argument("--works", default="edit,plain,sampled")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--draft-tokens", type=int, default=8)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    checkpoint = open_checkpoint(resolve_model(chosen.model).path)
    runner = TorchRunner.load(
        checkpoint,
        kv_cache_bytes=KV_CACHE,
        max_model_len=2048,
        threads=len(os.sched_getaffinity(0)),
        cpu=CpuSettings("auto", chosen.quantization, default_cache_dir()),
    )
    print(f"{runner.kernels}, {runner.dtype}")
    rows = measure(
        runner,
        checkpoint.tokenizer(),
        concurrencies=[int(part) for part in chosen.concurrencies.split(",")],
        names=chosen.works.split(","),
        rounds=chosen.rounds,
        draft_tokens=chosen.draft_tokens,
    )
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
