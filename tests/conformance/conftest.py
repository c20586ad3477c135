"""One service for all tests of a module, and strict eyes for what clients read leniently."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import TypeVar

import openai
import pytest
from openai import OpenAI
from tests.conformance.service import Service, running_service

# Before litellm is imported: it would fetch its price list, and langchain would ask where to send its traces.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["LANGSMITH_TRACING"] = "false"

T = TypeVar("T", bound=openai.BaseModel)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Generator[Service]:
    with running_service(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture
def client(service: Service) -> Iterator[OpenAI]:
    with OpenAI(base_url=service.base_url, api_key=service.key, max_retries=0, timeout=20) as made:
        yield made


def strict(answer: T) -> T:
    """The answer, held to its type: the client itself takes whatever comes."""
    type(answer).model_validate(answer.to_dict(), strict=True)
    return answer
