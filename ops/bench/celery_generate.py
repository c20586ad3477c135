"""What people build first: a Celery task around transformers' ``generate()``, and a door that waits for it.

A baseline for ``peers.py``, run in an environment of its own (nothing of ours is in there). One task per
request, one worker process that answers one request at a time, the whole answer in one event at its end.

    python celery_generate.py MODEL PORT THREADS REDIS-SERVER FOLDER     server, Celery worker and door
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn
from celery import Celery, signals
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

POLL_SECONDS = 0.01
app = Celery("celery_generate", broker=os.environ.get("CELERY_REDIS"), backend=os.environ.get("CELERY_REDIS"))
app.conf.update(result_expires=600, worker_prefetch_multiplier=1, broker_connection_retry_on_startup=True)
loaded: dict[str, Any] = {}


@signals.worker_init.connect
def load(**_: object) -> None:
    """Before the worker takes its first task: nobody's answer waits for the weights."""
    import torch
    import transformers

    torch.set_num_threads(int(os.environ["CELERY_THREADS"]))
    path, device = os.environ["CELERY_MODEL"], "cuda" if torch.cuda.is_available() else "cpu"
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16)
    loaded.update(model=model.to(device).eval(), tokenizer=transformers.AutoTokenizer.from_pretrained(path))


@app.task
def generate(prompt: list[int] | str, max_tokens: int) -> tuple[int, int, str]:
    """Tokens of the prompt and of a greedy answer of exactly this length, and its text."""
    import torch

    given = loaded["tokenizer"](prompt).input_ids if isinstance(prompt, str) else prompt
    ids = torch.tensor([given], device=loaded["model"].device)
    with torch.inference_mode():
        whole = loaded["model"].generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_tokens,
            min_new_tokens=max_tokens,
            do_sample=False,
        )
    answer = whole[0, len(given) :].tolist()
    return len(given), len(answer), loaded["tokenizer"].decode(answer)


async def answer(request: Request) -> StreamingResponse:
    """OpenAI's completions, as much of them as the benchmark asks for."""
    body = await request.json()
    task = await asyncio.to_thread(generate.delay, body["prompt"], body["max_tokens"])

    async def events() -> AsyncIterator[str]:
        while not await asyncio.to_thread(task.ready):  # noqa: ASYNC110 -- a result backend can only be polled
            await asyncio.sleep(POLL_SECONDS)
        prompt_tokens, tokens, text = await asyncio.to_thread(task.get)
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens}
        event = {"choices": [{"index": 0, "text": text, "finish_reason": "length"}], "usage": usage}
        yield f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


async def models(_: Request) -> JSONResponse:
    """The one that there is."""
    return JSONResponse(
        {"object": "list", "data": [{"id": "model", "object": "model", "owned_by": "celery"}]}
    )


def serve(model: str, port: str, threads: str, server: str, folder: str) -> None:
    """Broker and worker as processes of their own, the door in this one; all end together."""
    url = f"redis+socket://{folder}/celery.sock"
    os.environ |= {"CELERY_MODEL": model, "CELERY_THREADS": threads, "CELERY_REDIS": url}
    app.conf.update(broker_url=url, result_backend=url)
    command = [server, "--port", "0", "--unixsocket", f"{folder}/celery.sock", "--save", "", "--dir", folder]
    worker = [sys.executable, "-m", "celery", "-A", "celery_generate", "worker", "--pool", "solo"]
    # uvicorn raises the signal again when it has shut down, and its default ends this process first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    children = [subprocess.Popen(command, stdout=subprocess.DEVNULL)]
    children.append(subprocess.Popen([*worker, "--loglevel", "warning"], cwd=Path(__file__).parent))
    try:
        routes = [Route("/v1/models", models), Route("/v1/completions", answer, methods=["POST"])]
        door = Starlette(routes=routes)
        uvicorn.run(door, host="127.0.0.1", port=int(port), log_level="warning", timeout_graceful_shutdown=3)
    finally:
        for child in children[::-1]:
            child.terminate()
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:  # a worker ends its task first
                child.kill()


if __name__ == "__main__":
    serve(*sys.argv[1:6])
