"""transformers' continuous batching in a process of its own: orders in as lines of JSON, timed answers out.

As with OpenVINO nothing is measured here of HTTP: its figures are flattered by that much. Runs in
transformers' environment, with torch and transformers only; on a GPU where there is one.

    python peer_transformers.py MODEL THREADS
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

BLOCK_TOKENS = 256
BLOCKS = 128
"""32 requests of up to 640 tokens, with room to spare."""


def answer(manager: Any, order: dict[str, Any], first_id: int) -> list[dict[str, Any]]:
    """Keep so many requests running until all are answered; a token's time is when the loop hands it out."""
    waiting = list(enumerate(order["work"]))[::-1]
    running: dict[str, int] = {}
    answers: list[dict[str, Any]] = [{} for _ in waiting]
    while waiting or running:
        while waiting and len(running) < order["concurrency"]:
            place, work = waiting.pop()
            answers[place] = {"asked": time.monotonic(), "events": [], "tokens": 0}
            name = str(first_id + place)
            running[name] = place
            manager.add_request(
                work["prompt"], name, max_new_tokens=work["answer_tokens"], streaming=True, eos_token_id=-1
            )
        result = manager.get_result(timeout=60)
        if result is None or result.error is not None:
            raise RuntimeError("no result in a minute" if result is None else result.error)
        told = answers[running[result.request_id]]
        if len(result.generated_tokens) > told["tokens"]:
            told["events"].append(time.monotonic())
            told["tokens"] = len(result.generated_tokens)
        if result.is_finished():
            del running[result.request_id]
    return answers


def main() -> None:
    """Load, say so, and answer until there are no orders."""
    path, threads = sys.argv[1:3]
    torch.set_num_threads(int(threads))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16, attn_implementation="sdpa")
    settings = GenerationConfig(do_sample=False, max_new_tokens=64, eos_token_id=-1)
    sizes = ContinuousBatchingConfig(
        page_size=BLOCK_TOKENS, num_blocks=BLOCKS, max_batch_tokens=512, max_requests_per_batch=32
    )
    with (
        model.to(device)
        .eval()
        .continuous_batching_context_manager(
            generation_config=settings, continuous_batching_config=sizes
        ) as manager
    ):
        print(json.dumps({"ready": True}), flush=True)
        served = 0
        for line in sys.stdin:
            order = json.loads(line)
            print(json.dumps({"answers": answer(manager, order, served)}), flush=True)
            served += len(order["work"])


if __name__ == "__main__":
    main()
