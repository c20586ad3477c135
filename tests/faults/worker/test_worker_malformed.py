"""Whatever is posted straight into Redis ends with a terminal event, and the worker goes on."""

from __future__ import annotations

import json
from random import Random
from typing import TYPE_CHECKING, Any

from headway.queueing.client import Client
from headway.queueing.errors import IdempotencyConflictError, InvalidJobError
from headway.queueing.events import EndReason
from headway.queueing.redis_queue import RedisQueue

if TYPE_CHECKING:
    from tests.faults.worker.conftest import Follow, SpawnWorker, ToyJob, ToyText

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1e308, 2**63, -(2**63), "", "x", "\x00", "\ud800", "ü" * 300, [], [[]], [None], {},
    {"a": {}}, [1, 2, 3], [-1], [10**9], {"role": "user", "content": "x"}, [{"role": "user", "content": "x"}],
    [{"role": "nobody", "content": 5}], "interactive", "scripted",
)  # fmt: skip
FIELDS = (
    "model", "messages", "prompt", "prompt_token_ids", "tenant", "priority", "deadline_seconds",
    "on_disconnect", "metadata", "traceparent", "idempotency_key", "unheard_of",
)  # fmt: skip
SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed", "stop", "stop_token_ids",
    "max_tokens", "min_tokens", "ignore_eos", "logit_bias", "logprobs", "n", "unheard_of",
)  # fmt: skip


def malformed(rng: Random) -> bytes:
    """A job body with one to four things wrong with it, or no JSON at all."""
    if rng.random() < 0.1:
        return rng.randbytes(rng.randrange(60))
    body: dict[str, Any] = {"model": "scripted", "prompt": "x", "sampling": {"max_tokens": 2}}
    for _ in range(rng.randint(1, 4)):
        if rng.random() < 0.5:
            body[rng.choice(FIELDS)] = rng.choice(ODD)
        elif isinstance(body.get("sampling"), dict):
            body["sampling"][rng.choice(SAMPLING)] = rng.choice(ODD)
        if rng.random() < 0.1:
            body["sampling"] = rng.choice(ODD)
    text = json.dumps(body)
    return (text[: rng.randrange(len(text))] if rng.random() < 0.1 else text).encode("utf-8", "surrogatepass")


async def test_two_hundred_random_jobs_all_end_and_the_worker_lives(
    redis_url: str,
    client: Client,
    spawn_worker: SpawnWorker,
    follow: Follow,
    toy_job: ToyJob,
    toy_text: ToyText,
) -> None:
    worker = spawn_worker(redis_url, "w-1", model="scripted:ms_per_step=0")
    queue = client.queue
    assert isinstance(queue, RedisQueue)
    rng = Random(20_251_129)
    accepted: list[str] = []
    refused = 0
    for at in range(200):
        try:
            accepted.append((await queue.submit_body("scripted", malformed(rng), key=f"fuzz{at}")).job_id)
        except (InvalidJobError, IdempotencyConflictError):
            refused += 1  # by the server's own cheap checks
    assert min(len(accepted), refused) > 30, "both kinds of check are met"
    reasons = [(await follow(client, job_id))[1] for job_id in accepted]
    errors = [end.error.code for end in reasons if end.reason is EndReason.ERROR and end.error is not None]
    assert errors.count("invalid_job") > 30
    assert "internal_error" not in errors
    letters = {letter.job_id for letter in await queue.dead_letters("scripted", 1000)}
    invalid = {
        job_id
        for job_id, end in zip(accepted, reasons, strict=True)
        if end.error and end.error.code == "invalid_job"
    }
    assert invalid == letters
    assert worker.process.poll() is None
    result = await client.run(toy_job("still here", 10))
    assert result.choices[0].text == toy_text("still here", 10)
