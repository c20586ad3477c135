"""``/tokenize`` and ``/detokenize`` in vLLM's shape: jobs of which nothing is kept."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from tests.gateway.conftest import Rig
from tests.gateway.scripted_worker import Script
from tests.gateway.test_refusals import error_of
from tests.gateway.test_tools import CLOCK

from headway.queueing.errors import UnknownJobError
from headway.queueing.events import EndReason, JobError
from headway.queueing.messages import Priority, TokenTask


def answering(**answer: object) -> Script:
    return Script(pieces=(), tail=json.dumps(answer), prompt_tokens=0)


async def test_a_text_is_tokenized_by_a_worker(http: httpx.AsyncClient, rig: Rig) -> None:
    rig.worker.script = answering(token_ids=[1, 2], texts=["a", "b"], max_model_len=64)
    asked = {"model": "tiny", "prompt": "ab", "return_token_strs": True, "add_special_tokens": False}
    response = await http.post("/tokenize", json=asked, headers={"X-Tenant": "acme", "Idempotency-Key": "k"})
    assert response.status_code == 200, response.text
    assert response.json() == {"count": 2, "max_model_len": 64, "tokens": [1, 2], "token_strs": ["a", "b"]}
    (job,) = rig.worker.seen
    assert job.task == TokenTask(kind="tokenize", add_special_tokens=False, with_texts=True)
    assert (job.prompt, job.tenant, job.priority) == ("ab", "acme", Priority.INTERACTIVE)
    assert job.idempotency_key is None


async def test_a_conversation_is_tokenized_as_its_template_writes_it(
    http: httpx.AsyncClient, rig: Rig
) -> None:
    rig.worker.script = answering(token_ids=[1], texts=None, max_model_len=64)
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": [CLOCK],
        "add_generation_prompt": False,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    response = await http.post("/tokenize", json=asked)
    assert response.json() == {"count": 1, "max_model_len": 64, "tokens": [1], "token_strs": None}
    (job,) = rig.worker.seen
    assert job.chat_template_kwargs == {"enable_thinking": False, "add_generation_prompt": False}
    assert job.tools == (CLOCK,)


async def test_ids_become_text(http: httpx.AsyncClient, rig: Rig) -> None:
    rig.worker.script = answering(text="<s>ab")
    response = await http.post("/detokenize", json={"model": "tiny", "tokens": [0, 1, 2]})
    assert response.json() == {"prompt": "<s>ab"}
    assert rig.worker.seen[0].prompt_token_ids == (0, 1, 2)


async def test_nothing_is_kept_of_it(http: httpx.AsyncClient, rig: Rig) -> None:
    rig.worker.script = answering(text="x")
    await http.post("/detokenize", json={"model": "tiny", "tokens": [1]})
    (job_id,) = rig.worker.claimed
    async with asyncio.timeout(5):
        while not await is_gone(rig, job_id):
            await asyncio.sleep(0.005)


async def is_gone(rig: Rig, job_id: str) -> bool:
    try:
        await rig.queue.status(job_id)
    except UnknownJobError:
        return True
    return False


@pytest.mark.parametrize(
    ("url", "body", "param"),
    [
        ("/tokenize", {"prompt": "a"}, "model"),
        ("/tokenize", {"model": "tiny"}, None),
        ("/tokenize", {"model": "tiny", "prompt": ""}, "prompt"),
        ("/tokenize", {"model": "tiny", "prompt": "a", "messages": []}, "messages"),
        (
            "/tokenize",
            {"model": "tiny", "prompt": "a", "continue_final_message": True},
            "continue_final_message",
        ),
        (
            "/tokenize",
            {"model": "tiny", "messages": [{"role": "user", "content": "a"}], "add_special_tokens": True},
            None,
        ),
        ("/detokenize", {"model": "tiny", "tokens": []}, "tokens"),
        ("/detokenize", {"model": "tiny", "tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"model": "tiny", "tokens": "a"}, "tokens"),
        ("/detokenize", {"model": "tiny", "tokens": [1], "x": 1}, "x"),
    ],
)
async def test_a_bad_question_is_refused(
    http: httpx.AsyncClient, rig: Rig, url: str, body: dict[str, Any], param: str | None
) -> None:
    response = await http.post(url, json=body)
    assert response.status_code == 400, response.text
    assert error_of(response)["param"] == param
    assert rig.worker.seen == []


async def test_what_the_tokenizer_refuses_is_a_400(http: httpx.AsyncClient, rig: Rig) -> None:
    error = JobError("invalid_token_id", "token id 9 is outside the vocabulary of 5")
    rig.worker.script = Script(pieces=(), reason=EndReason.ERROR, error=error)
    response = await http.post("/detokenize", json={"model": "tiny", "tokens": [9]})
    assert response.status_code == 400
    assert error_of(response)["code"] == "invalid_token_id"
    assert (await http.post("/tokenize", json={"model": "other", "prompt": "a"})).status_code == 404
