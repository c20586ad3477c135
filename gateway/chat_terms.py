"""What a chat request's tools come to: what the model is shown, what binds its answer, how that is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headway.gateway.answer_form import AnswerForm
from headway.gateway.answer_or_calls import answer_or_calls, words_or_strict_calls
from headway.gateway.errors import invalid_request
from headway.gateway.model_directory import UNKNOWN, Formats
from headway.gateway.openai_requests import ChatRequest
from headway.gateway.tool_requests import (
    Tool,
    ToolChoice,
    arguments_schema,
    calls_schema,
    shown_tools,
    text_parameters,
)
from headway.queueing.messages import Constraint

_AUTO = ToolChoice(mode="auto")


@dataclass(frozen=True, slots=True)
class ChatTerms:
    """Settled before anything is posted."""

    tools: tuple[Tool, ...]
    """Those that the model is shown and may call."""
    choice: ToolChoice
    constraint: Constraint | None
    constraint_param: str | None
    """The field that asks for the constraint, for whoever refuses it."""
    is_parallel: bool
    calls_lead: bool
    """Whether the answer is either calls or in the form asked for."""
    leaves_room: bool
    """Whether thoughts and words may precede what the constraint binds."""

    def shown(self) -> list[dict[str, Any]]:
        """The tools as the chat template shows them."""
        return shown_tools(self.tools)

    def form(self, formats: Formats) -> AnswerForm:
        """How the answer is read, given how the model writes."""
        if self.choice.mode == "named":
            return AnswerForm(forced=self.choice.names[0])
        if self.choice.mode == "required":
            return AnswerForm(forced="", is_parallel=self.is_parallel)
        return AnswerForm(
            tool_format=formats.tools,
            reasoning_format=formats.reasoning,
            function_names=frozenset(tool.function.name for tool in self.tools),
            text_parameters=text_parameters(self.tools),
            is_parallel=self.is_parallel,
            calls_lead=self.calls_lead,
        )


def chat_terms(request: ChatRequest, formats: Formats = UNKNOWN) -> ChatTerms:
    """The terms of a request whose shape is right, given how its model writes; raises ApiError 400."""
    choice = request.tool_choice or _AUTO
    tools = _wanted(tuple(request.tools or ()), choice)
    constraint, param = request.constraint()
    is_parallel = request.parallel_tool_calls is not False
    calls_lead = leaves_room = False
    match choice.mode:
        case "required":
            constraint = Constraint(json_schema=calls_schema(tools, most=None if is_parallel else 1))
            param = "tools"
        case "named":
            constraint = Constraint(json_schema=arguments_schema(tools[0]))
            param = "tools"
        case _ if constraint is None and any(tool.function.strict for tool in tools):
            constraint = words_or_strict_calls(tools, formats.tools, is_parallel=is_parallel)
            param, leaves_room = "tools", constraint is not None
        case _ if tools and constraint is not None:
            constraint, calls_lead = _with_calls(constraint, param, tools, formats, is_parallel), True
        case _:
            pass
    return ChatTerms(tools, choice, constraint, param, is_parallel, calls_lead, leaves_room)


def template_kwargs(request: ChatRequest, *, leaves_room: bool = False) -> dict[str, Any]:
    """What else the chat template is told; ``reasoning_effort`` by the names that templates know.

    ``leaves_room``: the answer is bound, but may begin with thoughts all the same.
    """
    effort = request.reasoning_effort
    told: dict[str, Any] = {}
    if effort is not None:
        told = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    elif leaves_room:
        told = {"enable_thinking": None}  # neither: as the template has it
    return told | (request.chat_template_kwargs or {})


def _wanted(tools: tuple[Tool, ...], choice: ToolChoice) -> tuple[Tool, ...]:
    names = [tool.function.name for tool in tools]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise invalid_request(
                f"two tools are called {name!r}: give each its own name",
                param=f"tools[{index}].function.name",
            )
    if choice.mode == "none":
        return ()
    if not tools and choice.mode != "auto":
        raise invalid_request("'tool_choice' needs 'tools' to choose from", param="tool_choice")
    if unknown := [name for name in choice.names if name not in names]:
        raise invalid_request(
            f"'tool_choice' names {unknown[0][:64]!r}, which is not among the tools", param="tool_choice"
        )
    if choice.mode == "named":
        return tuple(tool for tool in tools if tool.function.name in choice.names)
    return tuple(tool for tool in tools if not choice.names or tool.function.name in choice.names)


def _with_calls(
    constraint: Constraint, param: str | None, tools: Sequence[Tool], formats: Formats, is_parallel: bool
) -> Constraint:
    both = None
    if constraint.json_schema is not None:
        both = answer_or_calls(constraint.json_schema, tools, formats.tools, is_parallel=is_parallel)
    if both is None:
        raise invalid_request(
            f"'{param}' binds every answer here, so that no tool could be called: leave it out, "
            'or send "tool_choice": "none" for an answer in that form, "required" for a call',
            param=param,
            code="unsupported",
        )
    return both
