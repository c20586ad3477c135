"""Chat templates: rendered in a sandbox, refusals told to the one who asked."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

from headway.engine.chat_template import ChatTemplate
from headway.engine.checkpoint import open_checkpoint
from headway.engine.errors import ChatTemplateError, RequestError
from headway.engine.hf_tokenizer import tokenizer_from_folder

HELLO = [{"role": "user", "content": "Grüße <b>🎉</b>"}]


def render(source: str, messages: list[dict[str, str]] = HELLO, **special: str) -> str:
    return ChatTemplate(source, special).render(messages)


def test_blocks_leave_no_blank_lines() -> None:
    assert (
        render("{% for m in messages %}\n  {% if true %}\n{{ m.role }}\n{% endif %}\n{% endfor %}")
        == "user\n"
    )


def test_the_assistants_turn_is_opened() -> None:
    assert render("{% if add_generation_prompt %}A:{% endif %}") == "A:"


def test_special_tokens_are_known_by_name_and_others_are_empty() -> None:
    assert render("[{{ bos_token }}|{{ eos_token }}]", bos_token="<s>") == "[<s>|]"


def test_json_is_written_without_escapes() -> None:
    assert render("{{ messages | tojson }}") == json.dumps(HELLO, ensure_ascii=False)
    assert render("{{ messages[0] | tojson(indent=1) }}") == json.dumps(
        HELLO[0], ensure_ascii=False, indent=1
    )


def test_loops_may_be_left() -> None:
    assert render("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "1"


def test_generation_marks_add_nothing() -> None:
    assert render("a{% generation %}b{{ messages[0].role }}{% endgeneration %}c") == "abuserc"


def test_the_date_comes_from_the_given_clock() -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", {}, now=lambda: datetime(2024, 7, 26))
    assert template.render(HELLO) == "26 Jul 2024"


def test_the_templates_own_refusal_is_told_with_its_words() -> None:
    with pytest.raises(ChatTemplateError, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.code == "chat_template_error"
    assert isinstance(caught.value, RequestError)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0]['content'] + 1 }}",
        "{{ messages[0].name.first }}",
        "{{ messages | map('nofilter') | list }}",
        "{{ 1 / 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_whatever_a_template_trips_over_is_the_requests_error(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for i in range(99999999) %}{% endfor %}",
    ],
)
def test_a_template_does_not_leave_the_sandbox(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception.__globals__ }}",
        "{{ messages.__class__ }}",
        "{{ '{0.__class__}'.format(messages) }}",
    ],
)
def test_internals_of_objects_are_empty_to_a_template(source: str) -> None:
    assert render(source) == ""


def test_messages_are_text_not_templates() -> None:
    text = "{{ 1 + 1 }}{% raw %}"
    assert render("{{ messages[0].content }}", [{"role": "user", "content": text}]) == text


def test_rendering_leaves_the_callers_messages_alone() -> None:
    messages = [{"role": "user", "content": "hi"}]
    render("{% set _ = messages[0].update({'x': 'y'}) if false %}{{ messages[0].role }}", messages)
    assert messages == [{"role": "user", "content": "hi"}]


def test_without_a_template_completions_are_recommended() -> None:
    with pytest.raises(ChatTemplateError, match="no chat template; use /v1/completions"):
        ChatTemplate(None, {}).render(HELLO)


def test_a_broken_template_is_told_when_a_chat_is_asked_for() -> None:
    template = ChatTemplate("{% for %}", {})
    with pytest.raises(ChatTemplateError, match=r"broken.*use /v1/completions"):
        template.render(HELLO)


def test_a_folders_template_file_goes_before_its_setting(tokenizer_folder: Path) -> None:
    def label() -> str:
        tokenizer = tokenizer_from_folder(tokenizer_folder, frozenset(), vocab_size=0)
        return b"".join(map(tokenizer.token_bytes, tokenizer.render_chat(HELLO))).decode()

    path = tokenizer_folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    with pytest.raises(ChatTemplateError, match="no chat template"):
        label()
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D{{ bos_token }}"}]
    path.write_text(json.dumps(settings | {"chat_template": named}))
    assert label() == "D"
    path.write_text(json.dumps(settings | {"chat_template": "S{{ messages[0].content }}"}))
    assert label() == "SGrüße <b>🎉</b>"
    (tokenizer_folder / "chat_template.jinja").write_text("J{{ eos_token }}")
    assert label() == "J"


def test_smollm2_gets_its_system_prompt_and_its_turn(smollm2_path: Path) -> None:
    tokenizer = open_checkpoint(smollm2_path).tokenizer()
    ids = tokenizer.render_chat([{"role": "user", "content": "Hi"}])
    text = b"".join(map(tokenizer.token_bytes, ids)).decode()
    assert text == (
        "system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face\nuser\nHi\nassistant\n"
    )
    assert (ids[0], ids.count(1), ids.count(2)) == (1, 3, 2)
