"""OpenVINO GenAI in a process of its own: orders in as lines of JSON, timed answers out.

It has no server, so nothing is measured here of HTTP: its figures are flattered by that much. Runs in
OpenVINO's environment, with the standard library, NumPy and openvino_genai only.

    python peer_openvino.py MODEL THREADS [--bf16]
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai


def answer(pipeline: Any, order: dict[str, Any], first_id: int) -> list[dict[str, Any]]:
    """Keep so many requests running until all are answered; a token's time is its step's end."""
    waiting = list(enumerate(order["work"]))[::-1]
    running: dict[int, Any] = {}
    answers: list[dict[str, Any]] = [{} for _ in waiting]
    while waiting or running:
        while waiting and len(running) < order["concurrency"]:
            place, work = waiting.pop()
            settings = genai.GenerationConfig()
            settings.max_new_tokens = work["answer_tokens"]
            settings.ignore_eos = True
            settings.do_sample = False
            prompt = ov.Tensor(np.array([work["prompt"]], dtype=np.int64))
            answers[place] = {"asked": time.monotonic(), "events": [], "tokens": 0}
            running[place] = pipeline.add_request(first_id + place, prompt, settings)
        pipeline.step()
        now = time.monotonic()
        for place, handle in list(running.items()):
            tokens = 0
            while handle.can_read():
                tokens += sum(len(output.generated_ids) for output in handle.read().values())
            if tokens:
                answers[place]["events"].append(now)
                answers[place]["tokens"] += tokens
            if handle.get_status() != genai.GenerationStatus.RUNNING and not handle.can_read():
                del running[place]
    return answers


def main() -> None:
    """Load, say so, and answer until there are no orders."""
    model, threads = sys.argv[1:3]
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 1  # GB
    scheduler.max_num_seqs = 32
    properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": int(threads)}
    if "--bf16" in sys.argv:
        properties["INFERENCE_PRECISION_HINT"] = "bf16"
    pipeline = genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)
    print(json.dumps({"ready": True}), flush=True)
    served = 0
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps({"answers": answer(pipeline, order, served)}), flush=True)
        served += len(order["work"])


if __name__ == "__main__":
    main()
