"""What a job's input becomes: tools and names for the template, and where the answer's thoughts begin."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tests.services.worker.conftest import StartWorker

from headway.engine.chat_template import ChatTemplate
from headway.engine.scripted import ByteTokenizer
from headway.queueing.answer_formats import ReasoningFormat, ToolFormat
from headway.queueing.client import Client
from headway.queueing.events import EndReason
from headway.queueing.messages import Job, TokenTask
from headway.services.answer_formats import reasoning_format, settled, tool_format
from headway.services.prompt import prompt_of

USER = ({"role": "user", "content": "hi"},)
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "clock"}}


class TemplateTokenizer(ByteTokenizer):
    """Bytes, behind a template of the test's own."""

    def __init__(self, source: str) -> None:
        self._template = ChatTemplate(source, {})

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        names: Mapping[str, object] | None = None,
    ) -> tuple[int, ...]:
        return tuple(self._template.render(messages, tools, names).encode())


def rendered(source: str, **fields: Any) -> tuple[str, str]:
    prompt = prompt_of(
        Job.model_validate({"model": "m", "messages": USER} | fields), TemplateTokenizer(source)
    )
    return bytes(prompt.token_ids).decode(), prompt.opening


def test_tools_and_names_reach_the_template() -> None:
    source = "{{ tools | tojson }} {{ enable_thinking }}"
    text, _ = rendered(source, tools=(TOOL,), chat_template_kwargs={"enable_thinking": False})
    assert text == f"{json.dumps([TOOL])} False"


@pytest.mark.parametrize(
    ("source", "opening"),
    [
        ("{{ messages[0].content }}<assistant><think>\n", "<think>"),
        ("[THINK]", "[THINK]"),
        ("<think>\n\n</think>\n\n", ""),
        ("{{ messages[0].content }}", ""),
    ],
)
def test_a_template_that_opens_thoughts_is_noticed(source: str, opening: str) -> None:
    assert rendered(source)[1] == opening


def test_a_bound_answer_has_no_thoughts() -> None:
    source = "{% if enable_thinking is not defined %}<think>{% elif not enable_thinking %}off{% endif %}"
    assert rendered(source, constraint={"regex": "a"}) == ("off", "")
    assert rendered("<think>", constraint={"regex": "a"}) == ("<think>", "")
    asked = {"constraint": {"regex": "a"}, "chat_template_kwargs": {"enable_thinking": True}}
    assert rendered("{{ enable_thinking }}", **asked) == ("True", "")


HERMES = "{% for tool in tools %}{{ tool | tojson }}{% endfor %}<tool_call>"


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("", "hermes"),
        ("{{ messages }} <|python_tag|> tools", "hermes"),
        (HERMES, "hermes"),
        (HERMES + "<function=x>", "qwen3_coder"),
        ("{%- if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]", "mistral"),
        ("{%- if tools is not none %}{{ tools }}{% endif %}<|python_tag|>", "llama3_json"),
        (
            '{% if tools %}{"name": function name, "parameters": dictionary of argument name}{% endif %}',
            "llama3_json",
        ),
        ("{% if tools %}[func_name1(params_name1=params_value1), func_name2(params)]{% endif %}", "pythonic"),
        ("{% if tools %}<|tool|>{{ tools }}{% endif %}", "auto"),
    ],
)
def test_the_format_of_calls_is_read_off_the_template(template: str, found: ToolFormat) -> None:
    assert tool_format(template) == found


@pytest.mark.parametrize(
    ("template", "found"), [("", "none"), ("{{ c.split('</think>') }}", "think"), ("[THINK]", "mistral")]
)
def test_the_format_of_thoughts_is_read_off_the_template(template: str, found: ReasoningFormat) -> None:
    assert reasoning_format(template) == found
    assert settled("auto", found) == found
    assert settled("none", found) == "none"


async def test_a_worker_tells_how_its_model_writes(start_worker: StartWorker) -> None:
    async with start_worker() as running:
        card = running.worker.card()
        assert (card.tool_format, card.reasoning_format) == ("hermes", "none")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"prompt": "aé", "task": {"kind": "tokenize", "with_texts": True}},
            {"token_ids": [256, 97, 195, 169], "texts": ["<|bos|>", "a", "<0xC3>", "<0xA9>"]},
        ),
        (
            {"prompt": "a", "task": {"kind": "tokenize", "add_special_tokens": False}},
            {"token_ids": [97], "texts": None},
        ),
        (
            {
                "messages": USER,
                "chat_template_kwargs": {"add_generation_prompt": False},
                "task": {"kind": "tokenize"},
            },
            {"token_ids": [258, *b"user\nhi", 259, 10], "texts": None},
        ),
        (
            {"prompt_token_ids": (256, 97, 195, 169), "task": {"kind": "detokenize"}},
            {"text": "<|bos|>aé"},
        ),
    ],
)
async def test_a_job_for_the_tokenizer_ends_with_its_word_and_costs_no_tokens(
    client: Client, start_worker: StartWorker, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    async with start_worker():
        result = await client.run(Job(model="scripted", **fields))
    answer = json.loads(result.choices[0].text)
    assert {name: answer[name] for name in expected} == expected
    assert result.reason is EndReason.STOP
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (0, 0)


async def test_an_id_outside_the_vocabulary_is_refused(client: Client, start_worker: StartWorker) -> None:
    async with start_worker():
        job = Job(model="scripted", prompt_token_ids=(999,), task=TokenTask(kind="detokenize"))
        result = await client.run(job)
    assert result.error is not None
    assert result.error.code == "invalid_token_id"
