"""What look-ahead gains: engines with and without it, in turns, on the same requests.

    .venv/bin/python ops/bench/look_ahead.py [--model smollm2-135m] [--device cpu] [--rounds 5]

First a device that only takes time (it sleeps, as the CPU does while another chip works), then a real model.
Each line: sequences in a batch, milliseconds per step without and with look-ahead (medians of the rounds),
the part of a step that is the host's, and the gain in tokens per second (median, lowest and highest round).
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from headway.engine.engine import Engine
from headway.engine.interfaces import Runner, Tokenizer
from headway.engine.limits import StepLimits
from headway.engine.policy import POLICIES
from headway.engine.scripted import ByteTokenizer
from headway.engine.values import RequestSpec, Sampled, Sampling, StepPlan, StepResult
from headway.services.model_host import SWITCH_SECONDS

SLEEPS = ((8, 0.005), (32, 0.005), (32, 0.01), (128, 0.01), (256, 0.02))
"""Sequences, and seconds of a step: about what an 8B model takes on a large GPU, and slower ones."""
REAL = ((1, 48), (8, 32), (32, 16))
"""Sequences, and tokens of each answer."""
DEFAULT_SWITCH_SECONDS = sys.getswitchinterval()
SLEEP_TOKENS = 64
PROMPT_TOKENS = 32


class SleepingDevice:
    """Takes as long as it is told and says the same letter to everyone."""

    block_count, block_size, host_slots, block_bytes = 1 << 16, 16, 0, 1
    max_model_len, vocab_size = 4096, ByteTokenizer.vocab_size
    eos_token_ids = ByteTokenizer.eos_token_ids

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def execute(self, plan: StepPlan) -> StepResult:
        """One entry per sampling chunk, after the time is over."""
        started = time.perf_counter()
        sampled = tuple([Sampled(chunk.key, 97) for chunk in plan.chunks if chunk.samples])
        time.sleep(max(0.0, started + self.seconds - time.perf_counter()))
        return StepResult(plan.step, sampled, time.perf_counter() - started)


@dataclass(frozen=True, slots=True)
class Round:
    """One run of all requests to their ends."""

    step_seconds: float
    device_seconds: float
    tokens_per_second: float


def requests(sequences: int, answer_tokens: int, vocab_size: int, name: str) -> Iterator[RequestSpec]:
    """Greedy answers of full length to random prompts."""
    rng = random.Random(11)
    for index in range(sequences):
        prompt = tuple(rng.randrange(vocab_size // 2) for _ in range(PROMPT_TOKENS))
        sampling = Sampling(temperature=0.0, ignore_eos=True)
        yield RequestSpec(f"{name}-{index}", 0, prompt, sampling, answer_tokens, tenant=f"t{index % 4}")


def run(
    runner: Runner, tokenizer: Tokenizer, sequences: int, answer_tokens: int, *, looks_ahead: bool
) -> Round:
    """Prefill everybody, then time the decodes."""
    sys.setswitchinterval(SWITCH_SECONDS if looks_ahead else DEFAULT_SWITCH_SECONDS)
    engine = Engine(
        runner,
        tokenizer,
        limits=StepLimits(max_step_tokens=max(512, sequences * PROMPT_TOKENS), max_sequences=sequences),
        policy=POLICIES["fair"](),
        looks_ahead=looks_ahead,
    )
    for spec in requests(sequences, answer_tokens, runner.vocab_size, f"r{time.perf_counter_ns()}"):
        engine.add(spec)
    engine.step(time.perf_counter())
    steps = tokens = 0
    device_seconds = 0.0
    started = time.perf_counter()
    while engine.has_work:
        tokens += sum(len(output.token_ids) for output in engine.step(time.perf_counter()))
        device_seconds += engine.load.last_step_seconds
        steps += 1
    seconds = time.perf_counter() - started
    engine.close()
    return Round(seconds / steps, device_seconds / steps, tokens / seconds)


def compare(
    title: str, rounds: int, measure: Callable[[bool], Round], *, sequences: int, warm_up: bool = True
) -> None:
    """Both arms in turns, so that whatever else the machine does meets both; prints one line."""
    if warm_up:
        measure(False)
    pairs = [(measure(False), measure(True)) for _ in range(rounds)]
    plain = statistics.median(pair[0].step_seconds for pair in pairs)
    ahead = statistics.median(pair[1].step_seconds for pair in pairs)
    host = statistics.median(1.0 - pair[0].device_seconds / pair[0].step_seconds for pair in pairs)
    gains = sorted(pair[1].tokens_per_second / pair[0].tokens_per_second - 1.0 for pair in pairs)
    print(
        f"{title:24} {sequences:4d}  {plain * 1e3:9.2f} {ahead * 1e3:9.2f}  {host:6.1%}  "
        f"{statistics.median(gains):+7.1%}  ({gains[0]:+.1%} to {gains[-1]:+.1%})",
        flush=True,
    )


def sleeping(rounds: int) -> None:
    """The simulated devices."""
    for sequences, seconds in SLEEPS:
        device = SleepingDevice(seconds)

        def measure(looks_ahead: bool, sequences: int = sequences, device: Runner = device) -> Round:
            return run(device, ByteTokenizer(), sequences, SLEEP_TOKENS, looks_ahead=looks_ahead)

        compare(f"sleeps {seconds * 1e3:.0f} ms", rounds, measure, sequences=sequences, warm_up=False)


def real(model: str, device: str, dtype: str, threads: int | None, rounds: int) -> None:
    """The real model."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as the worker does: busy loops would be measured

    from headway.engine.checkpoint import open_checkpoint
    from headway.engine.model_source import resolve_model
    from headway.engine.torch_runner import TorchRunner

    checkpoint = open_checkpoint(resolve_model(model).path)
    runner = TorchRunner.load(
        checkpoint, kv_cache_bytes=256 << 20, dtype=dtype, device=device, threads=threads
    )
    tokenizer = checkpoint.tokenizer()
    for sequences, answer_tokens in REAL:

        def measure(
            looks_ahead: bool, sequences: int = sequences, answer_tokens: int = answer_tokens
        ) -> Round:
            return run(runner, tokenizer, sequences, answer_tokens, looks_ahead=looks_ahead)

        compare(f"{model} on {device}", rounds, measure, sequences=sequences)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    print(f"{'':24} {'seq.':>4}  {'off, ms':>9} {'on, ms':>9}  {'host':>6}  {'gain':>7}")
    sleeping(chosen.rounds)
    real(chosen.model, chosen.device, chosen.dtype, chosen.threads, chosen.rounds)


if __name__ == "__main__":
    main()
