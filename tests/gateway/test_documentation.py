"""docs/http-api.md names what the gateway really has: no route, field, header or error code is left out."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from headway.gateway.app import create_app
from headway.gateway.openai_requests import ChatRequest, CompletionRequest
from headway.gateway.producer import _HEADERS
from headway.gateway.response_requests import ResponseRequest
from headway.gateway.settings import GatewaySettings
from headway.queueing.events import CALLERS_FAULT
from headway.queueing.memory_queue import MemoryQueue
from headway.services.batch.storage import GatewayBlobs, Storage

ROOT = Path(__file__).resolve().parents[2]
PAGE = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("http-api.md", "admin.md"))


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    return create_app(
        MemoryQueue(),
        GatewaySettings(),
        registry=CollectorRegistry(),
        clock=lambda: 0.0,
        wall_clock=lambda: 0.0,
        blobs=GatewayBlobs(Storage(str(tmp_path))),
    )


def routes_of(app: FastAPI) -> list[str]:
    paths = app.openapi()["paths"]
    routes = [
        f"{method.upper()} {path.replace(':path', '')}" for path, ways in paths.items() for method in ways
    ]
    assert len(routes) >= 13
    return routes


def test_every_route_is_documented(app: FastAPI) -> None:
    assert [route for route in routes_of(app) if f"`{route}`" not in PAGE] == []


async def test_the_index_lists_every_route_and_no_other(app: FastAPI) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http:
        listed = (await http.get("/")).json()["endpoints"].values()
    # A cancel has two names; the index itself and the schema are no routes of the schema.
    assert {*listed, "DELETE /v1/jobs/{job_id}", "GET /"} == {*routes_of(app), "GET /openapi.json"}


def test_every_field_and_header_is_documented() -> None:
    # Hints that ask nothing of us are accepted in silence.
    silent = {"safety_identifier", "prompt_cache_key"}
    shapes = (ChatRequest, CompletionRequest, ResponseRequest)
    fields = {name for shape in shapes for name in shape.model_fields} - silent
    assert sorted(name for name in fields if f"`{name}`" not in PAGE and f"`{name}." not in PAGE) == []
    assert [header for header in _HEADERS.values() if f"`{header}`" not in PAGE] == []


def test_every_error_code_is_documented() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "gateway").glob("*.py")]
    codes = {code for text in sources for code in re.findall(r'(?:code|reason)="(\w+)"', text)}
    assert "conflicting_terms" in codes
    assert sorted(code for code in codes | CALLERS_FAULT if f"`{code}`" not in PAGE) == []


def test_links_of_the_pages_lead_somewhere() -> None:
    pages = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "engine").glob("*.md"),
        *(ROOT / "ops").rglob("*.md"),
    ]
    assert len(pages) >= 7
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)(?:#[\w-]*)?\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []
