"""Does giving way change answers, and which way is cheapest? The real model on this machine.

    python ops/bench/preemption.py [--requests 12] [--share 0.4] [--rounds 5]

The pool holds ``share`` of what all requests need at once, and the engine expects answers to be short, so it
admits too many and has to preempt. Arms: never short of memory, always recompute, always swap, by cost; in
turns, each once per round and in another order each time. Prints for each its median CPU time, tokens per
second, preemptions, and whether every answer of every round equals the first arm's (float32). Last: goodput
by cost against the others, as the median of the ratios round by round. All requests are there at once and
every answer counts, so goodput is throughput. Time is CPU time of one thread: neighbours on the machine count
for little.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time

from headway.engine.checkpoint import Checkpoint, open_checkpoint
from headway.engine.engine import Engine
from headway.engine.interfaces import Tokenizer
from headway.engine.kv_cache import block_bytes
from headway.engine.limits import StepLimits
from headway.engine.memory import RECOMPUTE_ONLY
from headway.engine.memory_settings import MemorySettings
from headway.engine.model_source import resolve_model
from headway.engine.policy import POLICIES
from headway.engine.preemption import Mode, PreemptionLimits
from headway.engine.swap_costs import measure_swap_costs
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import RequestSpec, Sampling

BLOCK = 16
Answers = dict[str, tuple[int, ...]]


def specs(requests: int, prompt_tokens: int, answer_tokens: int) -> list[RequestSpec]:
    """Random prompts and greedy answers of full length."""
    rng = random.Random(7)
    return [
        RequestSpec(
            f"r{index}",
            1,
            tuple(rng.randint(1000, 40000) for _ in range(prompt_tokens)),
            Sampling(temperature=0.0, ignore_eos=True),
            answer_tokens,
        )
        for index in range(requests)
    ]


class Arm:
    """One way to deal with the same requests."""

    def __init__(self, checkpoint: Checkpoint, blocks: int, host_blocks: int, only: Mode | None) -> None:
        import torch

        size = block_bytes(checkpoint.config, BLOCK, torch.float32)
        self.runner = TorchRunner.load(
            checkpoint,
            kv_cache_bytes=blocks * size,
            host_cache_bytes=host_blocks * size,
            dtype="float32",
            block_size=BLOCK,
            threads=1,
            clock=time.process_time,
        )
        self.costs = measure_swap_costs(self.runner) or RECOMPUTE_ONLY
        self.limits = PreemptionLimits(only=only)
        self.figures: list[dict[str, float]] = []
        """Of each round."""
        self.is_equal = True

    def run(self, tokenizer: Tokenizer, wanted: list[RequestSpec]) -> Answers:
        """One round; returns the answers."""
        engine = Engine(
            self.runner,
            tokenizer,
            limits=StepLimits(max_step_tokens=256, max_sequences=len(wanted)),
            policy=POLICIES["fcfs"](),
            memory=MemorySettings(
                has_prefix_cache=True,
                is_overcommitted=True,
                answers_to_know=1,
                costs=self.costs,
                preemption=self.limits,
            ),
        )
        # One short answer: the engine expects short ones from now on, and is wrong.
        engine.add(RequestSpec("short", 1, (5, 6, 7), Sampling(temperature=0.0), 1))
        while engine.has_work:
            engine.step(time.process_time())
        answers: dict[str, list[int]] = {spec.request_id: [] for spec in wanted}
        for spec in wanted:
            engine.add(spec)
        started = time.process_time()
        while engine.has_work:
            for output in engine.step(time.process_time()):
                answers[output.key.request_id] += output.token_ids
        seconds = time.process_time() - started
        engine.check_books()
        extra = engine.load.extra
        figures = (
            "preemptions_swap",
            "preemptions_recompute",
            "preemptions_deferred",
            "preemption_lost_tokens",
        )
        self.figures.append(
            {
                "cpu_seconds": seconds,
                "tokens_per_second": sum(map(len, answers.values())) / seconds,
                **{name: extra[name] for name in figures},
                **{name: value for name, value in extra.items() if name.endswith("ed_seconds")},
                **{name: value for name, value in extra.items() if name.endswith("real_seconds")},
            }
        )
        return {name: tuple(answer) for name, answer in answers.items()}

    def medians(self) -> dict[str, float]:
        """Of all rounds."""
        return {
            name: round(statistics.median(figures[name] for figures in self.figures), 4)
            for name in self.figures[0]
        }


def main() -> None:
    """Run all arms in turns and print one JSON object per arm, then the ratios."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--prompt-tokens", type=int, default=40)
    parser.add_argument("--answer-tokens", type=int, default=72)
    parser.add_argument("--share", type=float, default=0.4)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    checkpoint = open_checkpoint(resolve_model(options.model).path)
    wanted = specs(options.requests, options.prompt_tokens, options.answer_tokens)
    demand = options.requests * -(-(options.prompt_tokens + options.answer_tokens) // BLOCK)
    short = max(2, int(demand * options.share))
    arms = {
        "enough memory": Arm(checkpoint, demand + 2, 0, None),
        "always recompute": Arm(checkpoint, short, demand, Mode.RECOMPUTE),
        "always swap": Arm(checkpoint, short, demand, Mode.SWAP),
        "by cost": Arm(checkpoint, short, demand, None),
    }
    expected: Answers = {}
    for turn in range(options.rounds):
        names = [*arms][turn % len(arms) :] + [*arms][: turn % len(arms)]
        for name in names:
            answers = arms[name].run(checkpoint.tokenizer(), wanted)
            expected = expected or answers
            arms[name].is_equal &= answers == expected
    for name, arm in arms.items():
        shown = {"arm": name, "kv_blocks": arm.runner.block_count, **arm.medians()}
        print(json.dumps({**shown, "equal_answers": arm.is_equal}), flush=True)
    by_cost = [figures["tokens_per_second"] for figures in arms["by cost"].figures]
    for name in ("always swap", "always recompute"):
        others = [figures["tokens_per_second"] for figures in arms[name].figures]
        ratios = sorted(ours / theirs for ours, theirs in zip(by_cost, others, strict=True))
        print(
            json.dumps(
                {
                    "by cost against": name,
                    "median": round(statistics.median(ratios), 4),
                    "from": round(ratios[0], 4),
                    "to": round(ratios[-1], 4),
                }
            )
        )


if __name__ == "__main__":
    main()
