"""What each form of the weights costs: perplexity of the check's text against float32, token by token.

    python ops/bench/perplexity.py                                   # the demo model, the whole text
    python ops/bench/perplexity.py --model FOLDER --tokens 4096 --forms none,int8
    python ops/bench/perplexity.py --record tests/engine/opticks_float32.json

float32 is torch's; the forms are the native kernels'. A minute or two on two cores for 135 M parameters.
``--record`` writes float32's log-likelihood of each window, which the tests measure the forms against.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch

from headway.engine.checkpoint import open_checkpoint
from headway.engine.cpu_kernels import CpuSettings, Quantization
from headway.engine.model_source import resolve_model
from headway.engine.quantization_check import WINDOW, cost_of, log_likelihoods, text_tokens
from headway.engine.torch_runner import TorchRunner
from headway.services.settings import default_cache_dir

FORMS: dict[str, Quantization] = {"none": "none", "int8": "int8", "q4": "q4", "q4-int8": "q4-int8"}
KV_BYTES = 256 << 20


def main() -> None:
    """Measure, print, and record if asked to."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=None, help="of the text's beginning; default: all")
    parser.add_argument("--forms", default="none,int8,q4,q4-int8")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--record", type=Path, default=None)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    checkpoint = open_checkpoint(resolve_model(given.model).path)
    tokens = text_tokens(checkpoint.tokenizer(), given.tokens)
    window = min(WINDOW, checkpoint.config.max_position)

    def scores(dtype: str, cpu: CpuSettings) -> torch.Tensor:
        runner = TorchRunner.load(
            checkpoint, dtype=dtype, kv_cache_bytes=KV_BYTES, max_model_len=window, cpu=cpu
        )
        return log_likelihoods(runner, tokens, window)

    exact = scores("float32", CpuSettings("torch"))
    print(f"float32: perplexity {math.exp(-float(exact.mean())):.4f} of {len(tokens):,} tokens", flush=True)
    if given.record is not None:
        each = window - 1  # of a window's first token nothing is said
        sums = [float(exact[start : start + each].sum()) for start in range(0, len(exact), each)]
        given.record.write_text(json.dumps({"window": window, "log_likelihoods": sums}) + "\n")
    for name in given.forms.split(","):
        found = scores("bfloat16", CpuSettings("native", FORMS[name], default_cache_dir()))
        print(
            f"{name:5}  perplexity {math.exp(-float(found.mean())):.4f}  {cost_of(found, exact)}", flush=True
        )


if __name__ == "__main__":
    main()
