"""What each form of weights, keys and values costs: perplexity of the check's text, token by token.

    python ops/bench/perplexity.py                                   # the demo model, the whole text
    python ops/bench/perplexity.py --model FOLDER --tokens 4096 --forms none,int8,int8-kv8
    python ops/bench/perplexity.py --window 1536 --against none --forms none-kv8,q4-int8-kv8
    python ops/bench/perplexity.py --record tests/engine/opticks_float32.json

A form is the weights of the native kernels, with keys and values in bfloat16 or, ``-kv8`` behind it, in
8 bits; each is compared with torch's float32, or with the form that ``--against`` names. Some five minutes on
two cores for 135 M parameters. ``--record`` writes float32's log-likelihood of each window, which the tests
measure the forms against.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from headway.engine.checkpoint import Checkpoint, open_checkpoint
from headway.engine.cpu_kernels import CpuSettings, Quantization
from headway.engine.model_source import resolve_model
from headway.engine.quantization_check import WINDOW, cost_of, log_likelihoods, text_tokens
from headway.engine.torch_runner import TorchRunner
from headway.services.settings import default_cache_dir

FLOAT32 = "float32"
WEIGHTS: dict[str, Quantization] = {"none": "none", "int8": "int8", "q4": "q4", "q4-int8": "q4-int8"}
KV8 = "-kv8"
KV_BYTES = 256 << 20


def options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=None, help="of the text's beginning; default: all")
    parser.add_argument("--window", type=int, default=WINDOW, help="tokens that are read together")
    parser.add_argument("--forms", default="none,none-kv8,int8,int8-kv8,q4,q4-kv8,q4-int8,q4-int8-kv8")
    parser.add_argument("--against", default=FLOAT32, help="the form that the others are compared with")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--record", type=Path, default=None)
    given = parser.parse_args()
    for name in (given.against, *given.forms.split(",")):
        if name != FLOAT32 and name.removesuffix(KV8) not in WEIGHTS:
            parser.error(f"no form is called {name}: {FLOAT32} or {', '.join(WEIGHTS)}, perhaps with {KV8}")
    if given.record is not None and (given.against, given.window, given.tokens) != (FLOAT32, WINDOW, None):
        parser.error(f"--record is of {FLOAT32}, the whole text and windows of {WINDOW}")
    return given


def scorer(checkpoint: Checkpoint, tokens: tuple[int, ...], window: int) -> Callable[[str], Tensor]:
    """Log-likelihoods of the text by a form's name; one form at a time is in memory."""

    def scores(name: str) -> Tensor:
        cpu, dtype = CpuSettings("torch"), FLOAT32
        if name != FLOAT32:
            kv = "int8" if name.endswith(KV8) else "bf16"
            weights = WEIGHTS[name.removesuffix(KV8)]
            cpu, dtype = CpuSettings("native", weights, default_cache_dir(), kv_cache_dtype=kv), "bfloat16"
        runner = TorchRunner.load(
            checkpoint, dtype=dtype, kv_cache_bytes=KV_BYTES, max_model_len=window, cpu=cpu
        )
        return log_likelihoods(runner, tokens, window)

    return scores


def main() -> None:
    """Measure, print, and record if asked to."""
    given = options()
    torch.set_num_threads(given.threads)
    checkpoint = open_checkpoint(resolve_model(given.model).path)
    tokens = text_tokens(checkpoint.tokenizer(), given.tokens)
    window = min(given.window, checkpoint.config.max_position)
    scores = scorer(checkpoint, tokens, window)
    reference = scores(given.against)
    perplexity = math.exp(-float(reference.mean()))
    print(
        f"{given.against}: perplexity {perplexity:.4f} of {len(tokens):,} tokens in windows of {window}",
        flush=True,
    )
    if given.record is not None:
        each = window - 1  # of a window's first token nothing is said
        sums = [float(reference[start : start + each].sum()) for start in range(0, len(reference), each)]
        given.record.write_text(json.dumps({"window": window, "log_likelihoods": sums}) + "\n")
    for name in given.forms.split(","):
        found = scores(name)
        print(
            f"{name:11}  perplexity {math.exp(-float(found.mean())):.4f}  {cost_of(found, reference)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
