"""What ``--deterministic`` costs: runners with and without it in turns, on the same decode steps.

    .venv/bin/python ops/bench/deterministic.py [--model NAME] [--forms auto,q4,none,float32] [--rounds 9]

Each line: the form of the weights (none: bfloat16), how the tokens are chosen, sequences in the batch and
new tokens of each (1: a decode; the last line of a form is a prompt), milliseconds per step without and with
it (the least of the rounds: cores may be shared), and the median of the rounds' ratios with the quartiles.
Compare within one run only.

``auto`` is another form with it than without, if the model has 4-bit blocks: q4 instead of q4-int8. So its
lines are what turning the option on costs, and those of the other forms what it costs in the same form.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from dataclasses import replace
from pathlib import Path
from random import Random

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # as a worker does, before torch is loaded

import torch
from named_choices import choose

from headway.engine.checkpoint import Checkpoint, open_checkpoint
from headway.engine.cpu_kernels import CpuSettings, Quantization
from headway.engine.model_source import resolve_model
from headway.engine.torch_runner import TorchRunner
from headway.engine.values import Admitted, Chunk, RequestKey, Sampling, StepPlan
from headway.services.settings import default_cache_dir

CONTEXT = 225
BLOCK_SIZE = 16
STEPS = 4
"""Per round and arm."""
FLOAT32 = "float32"
FORMS: dict[str, Quantization] = {
    "auto": "auto",
    "q4": "q4",
    "int8": "int8",
    "none": "none",
    FLOAT32: "none",
}
CHOICES = {
    "greedy": Sampling(temperature=0.0),
    "drawn": Sampling(temperature=0.8, seed=1),
    "top-p 0.95": Sampling(temperature=0.8, top_p=0.95, seed=1),
    "top-p and logprobs": Sampling(temperature=0.8, top_p=0.95, seed=1, logprobs=5),
}


def load(checkpoint: Checkpoint, form: str, *, is_deterministic: bool) -> TorchRunner:
    """On the native kernels."""
    return TorchRunner.load(
        checkpoint,
        dtype="float32" if form == FLOAT32 else "bfloat16",
        kv_cache_bytes=700 << 20,
        block_size=BLOCK_SIZE,
        cpu=CpuSettings("native", FORMS[form], default_cache_dir()),
        is_deterministic=is_deterministic,
    )


CASES = [(name, sequences, 1) for name in CHOICES for sequences in (1, 8, 32)] + [("greedy", 1, CONTEXT)]
"""How tokens are chosen, sequences, new tokens of each: decodes, and a prompt."""


def planned(
    sequences: int, new: int, sampling: Sampling, vocab: int
) -> tuple[tuple[Admitted, ...], StepPlan]:
    """Every sequence's last ``new`` tokens before ``CONTEXT``."""
    random, blocks = Random(0), -(-CONTEXT // BLOCK_SIZE)
    keys = [RequestKey(f"s{index}", 0) for index in range(sequences)]
    admitted = tuple(
        Admitted(key, tuple(random.choices(range(vocab), k=CONTEXT)), (), replace(sampling, seed=index))
        for index, key in enumerate(keys)
    )
    chunks = tuple(
        Chunk(
            newcomer.key,
            start=CONTEXT - new,
            token_ids=newcomer.prompt_token_ids[-new:],
            block_table=tuple(range(index * blocks, (index + 1) * blocks)),
            samples=True,
        )
        for index, newcomer in enumerate(admitted)
    )
    return admitted, StepPlan(0, chunks)


def seconds(runner: TorchRunner, plan: StepPlan) -> float:
    """Of one step, on average of a few."""
    started = time.perf_counter()
    for _ in range(STEPS):
        runner.execute(plan)
    return (time.perf_counter() - started) / STEPS


def main() -> None:
    """Print a line per case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--forms", default="auto,q4,none,float32", help=f"of {', '.join(FORMS)}")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    try:
        forms = choose(given.forms, FORMS, "form")
    except ValueError as error:
        parser.error(str(error))
    if given.rounds < 2:
        parser.error("--rounds is 2 or more: quartiles are told")
    torch.set_num_threads(given.threads)
    checkpoint = open_checkpoint(Path(resolve_model(given.model).path))
    print("form      chosen              seq. x new   ms without     with   with / without (quartiles)")
    for form in forms:
        arms = [load(checkpoint, form, is_deterministic=wanted) for wanted in (False, True)]
        print(f"{form}: {arms[0].kernels}; with it {arms[1].kernels}", flush=True)
        for name, sequences, new in CASES:
            admitted, plan = planned(sequences, new, CHOICES[name], checkpoint.config.vocab_size)
            for runner in arms:
                runner.execute(replace(plan, admitted=admitted))
            rounds = [[seconds(runner, plan) for runner in arms] for _ in range(given.rounds)]
            plain, ours = (1e3 * min(column) for column in zip(*rounds, strict=True))
            low, middle, high = statistics.quantiles([after / before for before, after in rounds])
            print(
                f"{form:9} {name:19} {sequences:3d} x {new:3d}   {plain:10.2f} {ours:8.2f}   "
                f"{middle:6.3f} ({low:.3f} to {high:.3f})",
                flush=True,
            )


if __name__ == "__main__":
    main()
