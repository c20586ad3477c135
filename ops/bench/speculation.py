"""Prompt lookup against plain decoding: the same answers, and how many tokens per second each makes.

    .venv/bin/python ops/bench/speculation.py [--quantization auto] [--concurrencies 1,4] [--rounds 5]
                                              [--works edit,plain,sampled] [--json FILE]

Two engines on one runner take turns, so many prompts each, so that whatever else the machine does meets both.
A ratio is that of a round, by the clock and by the processor's time (which others on the machine disturb
less); the median of the rounds is told with its quartiles. Works:

    edit        a paragraph that is to be repeated, or corrected
    plain       questions, greedy
    sampled     the same questions at temperature 1: next to nothing repeats

With one answer at a time edit is to be at least 1.3 times as fast with guesses, and no work below 0.97 of its
speed without: ends with 1 where the median by the clock is, and where an answer differs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from named_choices import choose

from headway.engine.engine import Engine
from headway.engine.interfaces import Runner, Tokenizer
from headway.engine.limits import StepLimits
from headway.engine.policy import Fcfs
from headway.engine.values import RequestSpec, Sampling

KV_CACHE: Final = 256 << 20
ANSWER_TOKENS: Final = 96
LEAST: Final = {"edit": 1.3, "plain": 0.97, "sampled": 0.97}
"""Of the tokens per second without guesses, with one answer at a time."""
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


class AnswersDifferError(Exception):
    """Guesses changed an answer."""


@dataclass
class Turn:
    """One engine's share of a round."""

    tokens: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    answers: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])


class Arm:
    """One engine that keeps what it learned from round to round."""

    def __init__(self, runner: Runner, tokenizer: Tokenizer, draft_tokens: int) -> None:
        self._engine = Engine(
            runner, tokenizer, limits=StepLimits(), policy=Fcfs(), max_draft_tokens=draft_tokens
        )
        self._serial = 0

    def answer(self, prompts: Sequence[tuple[int, ...]], sampling: Sampling, turn: Turn) -> None:
        """All of them at a time; what it took and brought is added to ``turn``."""
        said: dict[str, list[int]] = {}
        for prompt in prompts:
            self._serial += 1
            name = f"{id(self)}-{self._serial}"
            said[name] = []
            self._engine.add(RequestSpec(name, 0, prompt, sampling, ANSWER_TOKENS))
        while self._engine.has_work:
            started, cpu_started = time.perf_counter(), time.process_time()
            outputs = self._engine.step(started)
            turn.seconds += time.perf_counter() - started
            turn.cpu_seconds += time.process_time() - cpu_started
            for output in outputs:
                said[output.key.request_id] += output.token_ids
                turn.tokens += len(output.token_ids)
        turn.answers += [tuple(answer) for answer in said.values()]

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


def play(
    plain: Arm, guessing: Arm, work: tuple[Sequence[tuple[int, ...]], Sampling], concurrency: int, first: int
) -> tuple[Turn, Turn]:
    """One round: every few prompts by both arms, of which the one that begins changes."""
    prompts, sampling = work
    base, own = Turn(), Turn()
    for place, begin in enumerate(range(0, len(prompts), concurrency)):
        arms = [(plain, base), (guessing, own)]
        for arm, turn in arms if (first + place) % 2 == 0 else reversed(arms):
            arm.answer(prompts[begin : begin + concurrency], sampling, turn)
    return base, own


def row_of(work: str, concurrency: int, pairs: Sequence[tuple[Turn, Turn]]) -> dict[str, Any]:
    """What the rounds of a work say: (without, with guesses) of each."""
    rates = [(own.tokens / own.seconds) / (base.tokens / base.seconds) for base, own in pairs]
    cpu = [base.cpu_seconds / own.cpu_seconds for base, own in pairs]
    least = LEAST[work] if concurrency == 1 else None
    return {
        "work": work,
        "concurrency": concurrency,
        "plain_tokens_per_second": statistics.median(base.tokens / base.seconds for base, _ in pairs),
        "ratio": statistics.median(rates),
        "quartiles": quartiles(rates),
        "ratio_cpu": statistics.median(cpu),
        "ratios": [round(rate, 3) for rate in rates],
        "ratios_cpu": [round(rate, 3) for rate in cpu],
        "least": least,
        "is_met": least is None or statistics.median(rates) >= least,
    }


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """The first and the third; of one value itself."""
    low, _, high = statistics.quantiles(values) if len(values) > 1 else (values[0],) * 3
    return low, high


def measure(
    runner: Runner,
    tokenizer: Tokenizer,
    *,
    concurrencies: Sequence[int],
    names: Sequence[str],
    rounds: int,
    draft_tokens: int,
) -> list[dict[str, Any]]:
    """A row for each work and concurrency; AnswersDifferError: then no speed counts."""
    rows: list[dict[str, Any]] = []
    for concurrency in concurrencies:
        for name in names:
            plain, guessing = Arm(runner, tokenizer, 0), Arm(runner, tokenizer, draft_tokens)
            pairs: list[tuple[Turn, Turn]] = []
            for number in range(rounds):
                pairs.append(play(plain, guessing, works(tokenizer)[name], concurrency, number))
                if pairs[-1][0].answers != pairs[-1][1].answers:
                    raise AnswersDifferError(
                        f"{name} at {concurrency}: answers differ with and without guesses; several at a "
                        "time may with q4-int8, auto's form of 4-bit files: take --quantization q4"
                    )
            load = guessing.load
            rows.append(
                {
                    **row_of(name, concurrency, pairs),
                    "steps": load["steps"] / plain.load["steps"],
                    "guessed": load["draft_tokens"],
                    "right": load["draft_tokens_right"],
                    "gain_seen": load["speculation_gain"],
                }
            )
            print(line_of(rows[-1]), flush=True)
    return rows


def line_of(row: dict[str, Any]) -> str:
    """A row for people."""
    low, high = row["quartiles"]
    goal = ""
    if row["least"] is not None:
        goal = f"; at least {row['least']}: {'met' if row['is_met'] else 'MISSED'}"
    return (
        f"{row['work']:8} at {row['concurrency']:<3} {row['plain_tokens_per_second']:7.1f} tokens/s without; "
        f"with guesses {row['ratio']:.3f} ({low:.3f} to {high:.3f}), "
        f"by processor time {row['ratio_cpu']:.3f}, "
        f"{row['steps']:.2f} of the steps, {row['right']:.0f} of {row['guessed']:.0f} guesses right{goal}"
    )


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options; ends with exit code 2 and a message for a wrong one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--quantization", default="auto")
    parser.add_argument("--concurrencies", default="1")
    parser.add_argument("--works", default="edit,plain", help=f"of {', '.join(LEAST)}")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--draft-tokens", type=int, default=8)
    parser.add_argument("--json", type=Path, help="write all figures")
    options = parser.parse_args(arguments)
    try:
        options.works = choose(options.works, LEAST, "work")
    except ValueError as error:
        parser.error(str(error))
    parts = options.concurrencies.split(",")
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        parser.error("--concurrencies are numbers from 1, as 1,4")
    options.concurrencies = [int(part) for part in parts]
    if options.rounds < 1 or options.draft_tokens < 1:
        parser.error("--rounds and --draft-tokens are 1 or more")
    return options


def judge(runner: Runner, tokenizer: Tokenizer, options: argparse.Namespace) -> int:
    """Measure and print; 1 where a goal is missed or an answer differs."""
    try:
        rows = measure(
            runner,
            tokenizer,
            concurrencies=options.concurrencies,
            names=options.works,
            rounds=options.rounds,
            draft_tokens=options.draft_tokens,
        )
    except AnswersDifferError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return 0 if all(row["is_met"] for row in rows) else 1


def main() -> int:
    """Load and judge."""
    from headway.engine.checkpoint import open_checkpoint
    from headway.engine.cpu_kernels import CpuSettings
    from headway.engine.model_source import resolve_model
    from headway.engine.torch_runner import TorchRunner
    from headway.services.settings import default_cache_dir

    options = parse()
    checkpoint = open_checkpoint(resolve_model(options.model).path)
    runner = TorchRunner.load(
        checkpoint,
        kv_cache_bytes=KV_CACHE,
        max_model_len=2048,
        threads=len(os.sched_getaffinity(0)),
        cpu=CpuSettings("auto", options.quantization, default_cache_dir()),
    )
    print(f"{runner.kernels}, {runner.dtype}; medians of {options.rounds} rounds (quartiles)")
    return judge(runner, checkpoint.tokenizer(), options)


if __name__ == "__main__":
    sys.exit(main())
