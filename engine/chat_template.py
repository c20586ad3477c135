"""Chat templates: the Jinja text that comes with a model, rendered as transformers renders it.

The template is the model provider's, the messages are a stranger's: the template runs in Jinja's immutable
sandbox, and messages are plain strings, so neither reaches Python's objects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from headway.engine.chat_turns import in_words, template_turns
from headway.engine.errors import ChatTemplateError


class ChatTemplate:
    """One compiled template; ``special_tokens`` (``bos_token``, …) are what the template may write by name.

    ``tool_source``: a second one for conversations with tools, as some models have it. A template that does
    not compile is reported when a chat is asked for: completions still work.
    """

    def __init__(
        self,
        source: str | None,
        special_tokens: Mapping[str, str],
        *,
        tool_source: str | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._special_tokens = dict(special_tokens)
        self.source = (source or "") + (tool_source or "")
        """The text of the template, or of both; empty where there is none."""
        self._template: jinja2.Template | None = None
        self._tool_template: jinja2.Template | None = None
        self.knows_tools = False
        """Whether the template shows tools itself; else they are told in words."""
        self._refusal = "this model has no chat template; use /v1/completions with a prompt instead"
        if source is None:
            return
        try:
            environment = _environment()
            self._template = environment.from_string(source, _functions(now))
            if tool_source is not None:
                self._tool_template = environment.from_string(tool_source, _functions(now))
            self.knows_tools = any(_reads_tools(environment, text) for text in (source, tool_source or ""))
        except jinja2.TemplateError as error:
            self._refusal = f"the model's chat template is broken ({error}); use /v1/completions instead"

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        names: Mapping[str, object] | None = None,
    ) -> str:
        """The prompt for these messages and the assistant's turn; ChatTemplateError when refused.

        ``names`` are further names for the template; ``add_generation_prompt`` may be among them.
        """
        if self._template is None:
            raise ChatTemplateError(self._refusal)
        turns = template_turns(messages, knows_developer="developer" in self.source)
        if not self.knows_tools:
            turns, tools = in_words(turns, tools), ()
        has_tools = bool(tools) or any(turn["role"] == "tool" for turn in turns)
        template = self._tool_template if has_tools and self._tool_template is not None else self._template
        told = {"documents": None, "add_generation_prompt": True} | dict(names or {}) | self._special_tokens
        try:
            return template.render(
                told | {"messages": turns, "tools": [dict(tool) for tool in tools] or None}
            )
        except Exception as error:
            # Template code meets a stranger's messages: whatever it trips over is about this request only.
            raise ChatTemplateError(f"the model's chat template refuses these messages: {error}") from error


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    return environment


def _reads_tools(environment: jinja2.Environment, source: str) -> bool:
    """Whether a template looks at ``tools``."""
    return any(name.name == "tools" for name in environment.parse(source).find_all(nodes.Name))


def _functions(now: Callable[[], datetime]) -> dict[str, object]:
    """Functions that templates on the hub call."""

    def strftime_now(pattern: str) -> str:
        return now().strftime(pattern)

    return {"raise_exception": _raise_exception, "strftime_now": strftime_now}


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML, which models have not seen in training."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


class _Generation(Extension):
    """``{% generation %}``: marks the assistant's words for training; here it only scopes its body."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares a set, not a ClassVar

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()
