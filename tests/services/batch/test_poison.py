"""A line that we fail on is that line's error: its batch goes on, and ends."""

from __future__ import annotations

from typing import Any

import pytest
from tests.services.batch.conftest import Service, chat_line
from tests.services.batch.test_turn import code_of

from headway.services.batch import flight
from headway.services.batch.asked import Asked, ask
from headway.services.batch.line import Line


def deep(levels: int) -> dict[str, object]:
    found: dict[str, object] = {}
    for _ in range(levels):
        found = {"anyOf": [found]}
    return found


async def test_a_line_nested_too_deep_is_refused_as_at_the_endpoint(service: Service) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": deep(120)}}
    batch_id = await service.post(chat_line("good"), chat_line("deep", tools=[tool]))
    assert await service.turn(batch_id)
    output, errors = await service.results(batch_id)
    assert list(output) == ["good"]
    told = errors["deep"]["response"]
    assert (told["status_code"], told["body"]["error"]["param"]) == (400, "tools[0].function.parameters")


@pytest.mark.parametrize("where", ["asked", "posted", "answered"])
async def test_a_failure_of_ours_costs_one_line_and_not_its_batch(
    service: Service, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def failing(line: Line, *arguments: Any) -> Asked:
        asked = ask(line, *arguments)
        if line.custom_id != "bad":
            return asked
        match where:
            case "asked":
                raise KeyError(where)
            case "posted":
                unfit = asked.jobs[0].model_copy(update={"metadata": {"a": object()}})
                return Asked((unfit,), asked.keys, asked.answer)
            case _:
                return Asked(asked.jobs, asked.keys, lambda _: {"never": 1 // 0})

    monkeypatch.setattr(flight, "ask", failing)
    batch_id = await service.post(chat_line("good"), chat_line("bad"))
    assert await service.turn(batch_id)
    batch = await service.batch(batch_id)
    assert (batch.state, batch.tally.completed, batch.tally.failed) == ("completed", 1, 1)
    output, errors = await service.results(batch_id)
    assert list(output) == ["good"]
    assert code_of(errors["bad"]) in {"internal_error", "invalid_value", "invalid_job"}
