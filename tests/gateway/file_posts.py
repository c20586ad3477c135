"""Uploads and batches as a client posts them, to a gateway with a place for files."""

from __future__ import annotations

import time
from dataclasses import replace

import httpx
import orjson
from fastapi import FastAPI
from prometheus_client import CollectorRegistry
from tests.gateway.conftest import SETTINGS, Rig

from headway.gateway.app import create_app
from headway.services.batch.storage import GatewayBlobs, Storage

LINES = b'{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{}}\n'


def app_of(rig: Rig, storage: Storage, **changes: object) -> FastAPI:
    return create_app(
        rig.queue,
        replace(SETTINGS, **changes),  # type: ignore[arg-type]  # the test names real settings
        registry=CollectorRegistry(),
        clock=time.monotonic,
        wall_clock=time.time,
        blobs=GatewayBlobs(storage),
    )


def names_in(storage: Storage) -> list[str]:
    return [name for name, _ in storage.names("files")]


async def upload(
    http: httpx.AsyncClient, headers: dict[str, str] | None = None, purpose: str = "batch"
) -> str:
    response = await http.post(
        "/v1/files", files={"file": ("in.jsonl", LINES)}, data={"purpose": purpose}, headers=headers
    )
    assert response.status_code == 200, response.text
    file_id: str = response.json()["id"]
    return file_id


async def create(
    http: httpx.AsyncClient, file_id: str, headers: dict[str, str] | None = None, **changes: object
) -> httpx.Response:
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    return await http.post("/v1/batches", content=orjson.dumps(body | changes), headers=headers)
