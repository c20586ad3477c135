"""The three clients against the processes of one ``headway up``: the demo model, and a batch of its own."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from openai import OpenAI
from tests.conformance.conftest import strict
from tests.conformance.test_openai import WEATHER, City, text_of
from tests.conftest import missing
from tests.native_kernels import CACHE_DIR
from tests.services.up.headway_up import HeadwayUp, running_up

from headway.engine.errors import ModelError
from headway.engine.model_source import resolve_model

pytestmark = [pytest.mark.soak, pytest.mark.timeout(180), pytest.mark.filterwarnings("default")]
MODEL = "smollm2-135m"
ASK: Any = [{"role": "user", "content": "What is the capital of France?"}]
FORM: Any = [{"role": "user", "content": "Name a large city and how many people live there, as JSON."}]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Generator[HeadwayUp]:
    try:
        resolve_model(MODEL)
    except ModelError:
        missing(f"the model {MODEL}")
    own = {"HEADWAY_CACHE_DIR": str(CACHE_DIR), "HEADWAY_BATCH": "true"}
    arguments = ("--model", MODEL, "--kv-cache", "64MiB", "--threads", "2")
    with running_up(tmp_path_factory.mktemp("up"), *arguments, env=own) as running:
        yield running


@pytest.fixture
def client(up: HeadwayUp) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{up.url}/v1", api_key="none", max_retries=0, timeout=60) as made:
        yield made


def test_openai_chat_responses_tools_and_parse(client: OpenAI) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 6}
    whole = strict(client.chat.completions.create(**asked))
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 6
    chunks = list(client.chat.completions.create(**asked, stream=True))
    assert text_of(chunks) == whole.choices[0].message.content
    response = strict(client.responses.create(model=MODEL, input=ASK, temperature=0, max_output_tokens=6))
    assert response.output_text == whole.choices[0].message.content
    called = client.chat.completions.create(
        model=MODEL, messages=ASK, tools=[WEATHER], tool_choice="required", max_tokens=100, seed=1
    )
    calls = strict(called).choices[0].message.tool_calls or ()
    assert [set(json.loads(call.function.arguments)) for call in calls if call.type == "function"][:1] == [
        {"city"}
    ]
    parsed = client.chat.completions.parse(
        model=MODEL, messages=FORM, response_format=City, max_tokens=100, seed=1
    )
    assert isinstance(parsed.choices[0].message.parsed, City)


def test_litellm_and_langchain(up: HeadwayUp) -> None:
    import litellm
    from langchain_openai import ChatOpenAI

    at: dict[str, Any] = {"api_base": f"{up.url}/v1", "api_key": "none"}
    answer = litellm.completion(
        model=f"openai/{MODEL}", messages=FORM, response_format=City, max_tokens=100, seed=2, **at
    )
    City.model_validate_json(answer.choices[0].message.content)
    chain: Any = ChatOpenAI(model=MODEL, base_url=f"{up.url}/v1", api_key="none", seed=3, max_tokens=100)  # type: ignore[call-arg, arg-type]  # a plain text is taken, and max_tokens is an alias
    made = chain.with_structured_output(City).invoke("Name a large city and how many people live there.")
    assert isinstance(made, City)


def test_a_batch_from_its_file_to_its_answers(client: OpenAI) -> None:
    lines = [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": MODEL, "messages": ASK, "temperature": 0, "max_tokens": 6},
        }
        for number in range(3)
    ]
    content = "\n".join(json.dumps(line) for line in lines).encode()
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    deadline = time.monotonic() + 120
    while strict(batch).status not in {"completed", "failed", "expired", "cancelled"}:
        assert time.monotonic() < deadline
        time.sleep(0.2)
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed"
    assert batch.output_file_id is not None
    answers = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert sorted(answer["custom_id"] for answer in answers) == ["line-0", "line-1", "line-2"]
    texts = {answer["response"]["body"]["choices"][0]["message"]["content"] for answer in answers}
    alone = client.chat.completions.create(model=MODEL, messages=ASK, temperature=0, max_tokens=6)
    assert texts == {alone.choices[0].message.content}
