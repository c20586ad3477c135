"""Answers of models in each format: read alike however they are cut, and only what is a call becomes one."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headway.gateway.answer_form import AnswerForm, Gathered
from headway.gateway.answer_parts import CallArgued, CallBegun, Part, Said, Thought
from headway.queueing.answer_formats import THOUGHT_MARKS, ToolFormat

FORM = AnswerForm(
    "auto",
    "auto",
    frozenset({"get_weather", "f", "add"}),
    {"f": frozenset({"s"})},
)


def form(tool_format: ToolFormat) -> AnswerForm:
    return replace(FORM, tool_format=tool_format)


def read(asked: AnswerForm, pieces: list[str]) -> Gathered:
    reader, gathered = asked.reader(), Gathered()
    for part in [part for piece in pieces for part in reader.feed(piece)] + reader.close():
        gathered.add(part)
    return gathered


Calls = list[list[str]]
CASES: list[tuple[ToolFormat, str, str, Calls]] = [
    (
        "hermes",
        'Well.\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
        "Well.",
        [["f", '{"a": 1}']],
    ),
    (
        "hermes",
        '<tool_call>{"name":"f","arguments":{"t":"</tool_call>{[\\""}}</tool_call>\n'
        '<tool_call>{"arguments": {"x": [1]}, "name": "add"}</tool_call>\n',
        "",
        [["f", '{"t":"</tool_call>{[\\""}'], ["add", '{"x": [1]}']],
    ),
    (  # SmolLM2's list; arguments as a text; none at all
        "hermes",
        '<tool_call>[{"name": "f", "arguments": {}}, {"name": "add", "arguments": "{\\"a\\":1}"}, '
        '{"name": "f"}]</tool_call>',
        "",
        [["f", "{}"], ["add", '{"a":1}'], ["f", "{}"]],
    ),
    ("hermes", '{"name": "f", "arguments": {}}', '{"name": "f", "arguments": {}}', []),
    ("hermes", "The mark <tool_call> \nopens <tool", "The mark <tool_call> \nopens <tool", []),
    ("hermes", '<tool_call>{"name": 5}</tool_call>', '<tool_call>{"name": 5}</tool_call>', []),
    ("hermes", '<tool_call>{"nam', '<tool_call>{"nam', []),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": [1', "", [["f", '{"a": [1']]),
    (
        "hermes",
        '<tool_call>{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}</tool_call>',
        "",
        [["f", '{"a":1}']],
    ),
    (
        "qwen3_coder",
        "So:\n<tool_call>\n<function=f>\n<parameter=s>\n12\n</parameter>\n<parameter=n>\n12\n</parameter>\n"
        "<parameter=b>True</parameter>\n</function>\n</tool_call>\n",
        "So:",
        [["f", '{"s": "12", "n": 12, "b": true}']],
    ),
    ("qwen3_coder", "<tool_call><function=add></function></tool_call>ok", "ok", [["add", "{}"]]),
    (
        "qwen3_coder",
        f"<tool_call><function=add><parameter=x>{'[' * 300}{']' * 300}</parameter></function></tool_call>",
        "",
        [["add", f'{{"x": "{"[" * 300}{"]" * 300}"}}']],
    ),
    ("qwen3_coder", "<tool_call><func>", "<tool_call><func>", []),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "]"}}, {"name": "add", "arguments": {}, "id": "x"}]',
        "",
        [["f", '{"a": "]"}'], ["add", "{}"]],
    ),
    (
        "mistral",
        'Hm.[TOOL_CALLS]f[ARGS]{"a": {"b": 1}}[TOOL_CALLS]add[CALL_ID]abc123def[ARGS]{}',
        "Hm.",
        [["f", '{"a": {"b": 1}}'], ["add", "{}"]],
    ),
    ("mistral", "[TOOL_CALLS] what is {it}", "[TOOL_CALLS] what is {it}", []),
    (
        "llama3_json",
        '{"name": "f", "parameters": {"a": 1}}; {"name": "add", "parameters": {}}',
        "",
        [["f", '{"a": 1}'], ["add", "{}"]],
    ),
    ("llama3_json", '<|python_tag|>{"type": "function", "name": "f", "parameters": {}}', "", [["f", "{}"]]),
    ("llama3_json", '{"name": "fox", "colour": "red"}', '{"name": "fox", "colour": "red"}', []),
    ("llama3_json", '{"answer": {"name": "f"}}', '{"answer": {"name": "f"}}', []),
    ("llama3_json", "<|python_tag|>print(1)", "print(1)", []),
    (
        "pythonic",
        '[get_weather(city="Pa)r\'is", n=[1, true, None], o={"k": false}), f()]',
        "",
        [["get_weather", '{"city":"Pa)r\'is","n":[1,true,null],"o":{"k":false}}'], ["f", "{}"]],
    ),
    ("pythonic", "[1, 2] is a list", "[1, 2] is a list", []),
    ("pythonic", "[f(1)]", "[f(1)]", []),
    ("pythonic", "[f(a=open('x'))]", "[f(a=open('x'))]", []),
    ("pythonic", "[get_w", "[get_w", []),
    ("auto", '<tool_call>{"name":"f"}</tool_call>[TOOL_CALLS]add{}', "", [["f", "{}"], ["add", "{}"]]),
    ("none", '<tool_call>{"name":"f"}</tool_call>', '<tool_call>{"name":"f"}</tool_call>', []),
]


@pytest.mark.parametrize(("tool_format", "text", "words", "calls"), CASES)
def test_each_format_is_read(tool_format: ToolFormat, text: str, words: str, calls: Calls) -> None:
    gathered = Gathered.from_text(form(tool_format), text)
    assert (gathered.words, gathered.calls, gathered.thoughts) == (words, calls, "")


@pytest.mark.parametrize(
    ("text", "thoughts", "words"),
    [
        ("<think>\nHm, <b>.\n</think>\n\nYes.", "Hm, <b>.", "Yes."),
        ("[THINK]Hm.[/THINK]Yes.", "Hm.", "Yes."),
        ("<think>\n\n</think>\n\nYes.", "", "Yes."),
        ("<think>it never ends </thi", "it never ends </thi", ""),
        ("Say <think>x</think>", "", "Say <think>x</think>"),
        (" <thin", "", " <thin"),
    ],
)
def test_thoughts_are_split_off_the_front(text: str, thoughts: str, words: str) -> None:
    gathered = Gathered.from_text(FORM, text)
    assert (gathered.thoughts, gathered.words) == (thoughts, words)
    unread = Gathered.from_text(replace(FORM, reasoning_format="none", function_names=frozenset()), text)
    assert (unread.thoughts, unread.words) == ("", text)


def test_a_call_may_follow_thoughts() -> None:
    gathered = Gathered.from_text(FORM, '<think>a</think>\n<tool_call>{"name":"f"}</tool_call>')
    assert gathered == Gathered("", "a", [["f", "{}"]])


def test_one_call_at_most_where_they_must_not_be_parallel() -> None:
    text = '<tool_call>[{"name":"f"},{"name":"add"}]</tool_call>'
    assert Gathered.from_text(replace(FORM, is_parallel=False), text).calls == [["f", "{}"]]


def test_a_forced_answer_is_a_list_of_calls_or_one_functions_arguments() -> None:
    text = '[ {"name": "f", "arguments": {"a": 1}},\n{"name": "add", "arguments": {}}]'
    assert Gathered.from_text(replace(FORM, forced=""), text).calls == [["f", '{"a": 1}'], ["add", "{}"]]
    assert Gathered.from_text(replace(FORM, forced="f"), '{"a": 1}').calls == [["f", '{"a": 1}']]


WRITTEN = [text for _, text, _, _ in CASES] + ["<think>a</think> b", "[THINK]", " \n", "</tool_call>", "}"]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["auto", "none", "hermes", "mistral", "llama3_json", "pythonic", "qwen3_coder"]),
    st.lists(st.sampled_from(WRITTEN) | st.text('<tool_call>{}[]"=,()f ', max_size=12), max_size=3).map(
        "".join
    ),
    st.data(),
)
def test_however_an_answer_is_cut_its_parts_add_up_to_the_same(
    tool_format: ToolFormat, text: str, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    pieces = [text[start:stop] for start, stop in pairwise([0, *cuts, len(text)])]
    asked = form(tool_format)
    whole = Gathered.from_text(asked, text)
    assert read(asked, pieces) == whole
    assert read(asked, list(text)) == whole


@given(st.text(max_size=30))  # which draws texts of our own code, too
def test_without_marks_nothing_is_lost(text: str) -> None:
    assume(not any(opening in text for opening, _ in THOUGHT_MARKS.values()))
    gathered = Gathered.from_text(form("hermes"), text)
    assert (gathered.words, gathered.calls) == (text, [])


@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(FORM.function_names)),
            st.dictionaries(
                st.text(max_size=5), st.none() | st.booleans() | st.integers() | st.text(), max_size=3
            ),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_arguments_come_out_as_they_went_in(calls: list[tuple[str, dict[str, object]]]) -> None:
    text = "".join(
        f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
        for name, arguments in calls
    )
    read_back = [(name, json.loads(arguments)) for name, arguments in Gathered.from_text(FORM, text).calls]
    assert read_back == calls


def test_nothing_waits_longer_than_it_may_become_a_call() -> None:
    reader = form("llama3_json").reader()
    assert reader.feed('{"na') == []
    assert reader.feed('ture"') == [Said('{"nature"')]
    assert reader.feed(": 1}") == [Said(": 1}")]
    reader = form("hermes").reader()
    assert reader.feed("a <tool") == [Said("a")]
    assert reader.feed("box") == [Said(" <toolbox")]


def test_names_and_arguments_go_out_as_they_come() -> None:
    reader = form("hermes").reader()
    text = ['<tool_call>{"name": "f', '", "argum', 'ents": {"a', '": 1', "}", "}</tool_call>"]
    parts: list[list[Part]] = [reader.feed(piece) for piece in text]
    assert parts == [
        [],
        [CallBegun(0, "f")],
        [CallArgued(0, '{"a')],
        [CallArgued(0, '": 1')],
        [CallArgued(0, "}")],
        [],
    ]
    reader = FORM.reader()
    assert reader.feed("<think>so") == [Thought("so")]


@pytest.mark.parametrize(
    "deep", ["[f(a=" + "(" * 5000, "[f(a=" + "-" * 20000 + "1)]", "[f(a=[" + "[" * 3000 + "]" * 3001 + ")]"]
)
def test_deep_nesting_is_words(deep: str) -> None:
    gathered = Gathered.from_text(form("pythonic"), deep)
    assert gathered.words + "".join(name for name, _ in gathered.calls)
