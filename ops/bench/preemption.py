"""Does giving way change answers, and which way is cheapest? The real model on this machine.

    python ops/bench/preemption.py [--requests 12] [--share 0.4]

The pool holds ``share`` of what all requests need at once, and the engine expects answers to be short, so it
admits too many and has to preempt. Arms: never short of memory, always recompute, always swap, by cost. Each
prints its time, tokens per second, preemptions, and whether every answer equals the first arm's (float32).
Time is CPU time of one thread: neighbours on the machine do not count.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable

from headway.engine.checkpoint import Checkpoint, open_checkpoint
from headway.engine.engine import Engine
from headway.engine.interfaces import Tokenizer
from headway.engine.kv_cache import block_bytes
from headway.engine.limits import StepLimits
from headway.engine.memory import RECOMPUTE_ONLY
from headway.engine.memory_settings import MemorySettings
from headway.engine.model_source import resolve_model
from headway.engine.policy import POLICIES
from headway.engine.preemption import PreemptionCosts
from headway.engine.swap_costs import measure_swap_costs
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import RequestSpec, Sampling

BLOCK = 16
FREE_SWAPS = PreemptionCosts(block_bytes=1.0, out_bytes_per_second=1e15, in_bytes_per_second=1e15)
Answers = dict[str, tuple[int, ...]]
Costs = Callable[[TorchRunner], PreemptionCosts]


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

    def __init__(self, checkpoint: Checkpoint, blocks: int, host_blocks: int, costs: Costs) -> None:
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
        self.costs = costs(self.runner)

    def run(self, tokenizer: Tokenizer, wanted: list[RequestSpec]) -> tuple[Answers, dict[str, object]]:
        """Answers and figures."""
        engine = Engine(
            self.runner,
            tokenizer,
            limits=StepLimits(max_step_tokens=256, max_sequences=len(wanted)),
            policy=POLICIES["fcfs"](),
            memory=MemorySettings(
                has_prefix_cache=True, is_overcommitted=True, answers_to_know=1, costs=self.costs
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
        tokens = sum(map(len, answers.values()))
        figures: dict[str, object] = {
            "cpu_seconds": round(seconds, 2),
            "tokens_per_second": round(tokens / seconds, 1),
            "swaps": int(extra["preemptions_swap"]),
            "recomputes": int(extra["preemptions_recompute"]),
            "lost_tokens": int(extra["preemption_lost_tokens"]),
        }
        return {name: tuple(answer) for name, answer in answers.items()}, figures


def main() -> None:
    """Run all arms and print one JSON object per arm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--prompt-tokens", type=int, default=40)
    parser.add_argument("--answer-tokens", type=int, default=72)
    parser.add_argument("--share", type=float, default=0.4)
    options = parser.parse_args()
    checkpoint = open_checkpoint(resolve_model(options.model).path)
    wanted = specs(options.requests, options.prompt_tokens, options.answer_tokens)
    demand = options.requests * -(-(options.prompt_tokens + options.answer_tokens) // BLOCK)
    short = max(2, int(demand * options.share))
    arms: dict[str, tuple[int, int, Costs]] = {
        "enough memory": (demand + 2, 0, lambda _: RECOMPUTE_ONLY),
        "always recompute": (short, 0, lambda _: RECOMPUTE_ONLY),
        "always swap": (short, demand, lambda _: FREE_SWAPS),
        "by cost": (short, demand, lambda runner: measure_swap_costs(runner) or RECOMPUTE_ONLY),
    }
    expected: Answers = {}
    for name, (blocks, host_blocks, costs) in arms.items():
        arm = Arm(checkpoint, blocks, host_blocks, costs)
        answers, figures = arm.run(checkpoint.tokenizer(), wanted)
        expected = expected or answers
        figures["equal_answers"] = f"{sum(answers[n] == expected[n] for n in expected)} of {len(expected)}"
        print(json.dumps({"arm": name, "kv_blocks": blocks, **figures}), flush=True)


if __name__ == "__main__":
    main()
