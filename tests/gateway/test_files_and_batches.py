"""Files and batches over HTTP, with OpenAI's own client and by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import openai
import pytest
from tests.gateway.conftest import Rig
from tests.gateway.file_posts import LINES, app_of, create, names_in, upload

from headway.queueing.batch import BatchFault, Outcome, Tally
from headway.queueing.keys import FileKeys
from headway.services.batch.storage import Storage


@pytest.fixture
async def http(rig: Rig, storage: Storage) -> AsyncIterator[httpx.AsyncClient]:
    async with rig.client(app_of(rig, storage)) as client:
        yield client


@asynccontextmanager
async def openai_client(rig: Rig, storage: Storage) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        rig.serve(app_of(rig, storage)) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


async def test_a_file_is_kept_listed_downloaded_and_deleted(rig: Rig, storage: Storage) -> None:
    async with openai_client(rig, storage) as client:
        content = LINES * 40_000  # several pieces
        made = await client.files.create(
            file=("../../in.jsonl", content),
            purpose="batch",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )
        assert (made.bytes, made.filename, made.purpose) == (len(content), "in.jsonl", "batch")
        assert made.expires_at == made.created_at + 3600
        assert [file.id async for file in client.files.list(purpose="batch")] == [made.id]
        assert [file.id async for file in client.files.list(purpose="user_data")] == []
        assert (await client.files.retrieve(made.id)).id == made.id
        assert (await client.files.content(made.id)).content == content
        assert (await client.files.delete(made.id)).deleted
        with pytest.raises(openai.NotFoundError, match="No such File object"):
            await client.files.retrieve(made.id)
    assert names_in(storage) == []


async def test_files_are_listed_page_by_page(rig: Rig, storage: Storage) -> None:
    async with openai_client(rig, storage) as client:
        made = [(await client.files.create(file=b"x", purpose="user_data")).id for _ in range(5)]
        oldest_first = [file.id async for file in client.files.list(limit=2, order="asc")]
        assert sorted(oldest_first) == sorted(made)
        assert [file.id async for file in client.files.list(limit=2)] == oldest_first[::-1]


@pytest.mark.parametrize(
    ("form", "status", "code", "param"),
    [
        ({"files": {"purpose": (None, b"batch")}}, 400, "missing_required_parameter", "file"),
        ({"files": {"file": b"x"}}, 400, "missing_required_parameter", "purpose"),
        ({"files": {"file": b"x"}, "data": {"purpose": "fine-tune"}}, 400, "invalid_value", "purpose"),
        ({"files": {"other": b"x"}, "data": {"purpose": "batch"}}, 400, "invalid_form", "file"),
        (
            {"files": {"file": b"x"}, "data": {"purpose": "batch", "expires_after[seconds]": "60"}},
            400,
            "invalid_value",
            "expires_after[anchor]",
        ),
        (
            {
                "files": {"file": b"x"},
                "data": {
                    "purpose": "batch",
                    "expires_after[anchor]": "created_at",
                    "expires_after[seconds]": "60",
                },
            },
            400,
            "invalid_value",
            "expires_after[seconds]",
        ),
        ({"files": {"file": b"x" * 2001}, "data": {"purpose": "batch"}}, 413, "file_too_large", "file"),
        ({"json": {"purpose": "batch"}}, 415, "unsupported_media_type", None),
    ],
)
async def test_an_upload_that_is_refused_leaves_nothing(
    rig: Rig, storage: Storage, form: dict[str, object], status: int, code: str, param: str | None
) -> None:
    async with rig.client(app_of(rig, storage, max_file_bytes=2000)) as http:
        response = await http.post("/v1/files", **form)  # type: ignore[arg-type]  # httpx's own names
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert names_in(storage) == []
    assert await rig.queue.batch_store.count_files("default") == 0


async def test_a_form_that_breaks_off_leaves_nothing(http: httpx.AsyncClient, storage: Storage) -> None:
    body = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\nhalf a file'
    headers = {"content-type": "multipart/form-data; boundary=x"}
    response = await http.post("/v1/files", content=body, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_form")
    assert names_in(storage) == []


async def test_a_form_without_a_boundary_says_so(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/files", content=b"x", headers={"content-type": "multipart/form-data"})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_form")
    assert "boundary" in response.json()["error"]["message"]


async def test_tenants_see_only_their_own_files_and_batches(http: httpx.AsyncClient) -> None:
    mine, other = {"X-Tenant": "mine"}, {"X-Tenant": "other"}
    file_id = await upload(http, mine)
    batch_id = (await create(http, file_id, mine)).json()["id"]
    for path in (f"/v1/files/{file_id}", f"/v1/files/{file_id}/content", f"/v1/batches/{batch_id}"):
        assert (await http.get(path, headers=other)).status_code == 404
        assert (await http.get(path, headers=mine)).status_code == 200
    assert (await http.delete(f"/v1/files/{file_id}", headers=other)).status_code == 404
    assert (await http.post(f"/v1/batches/{batch_id}/cancel", headers=other)).status_code == 404
    refused = await create(http, file_id, other)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input_file_id")
    assert (await http.get("/v1/files", headers=other)).json()["data"] == []
    assert (await http.get("/v1/batches", headers=other)).json()["data"] == []


async def test_a_batch_is_accepted_cancelled_and_listed(rig: Rig, storage: Storage) -> None:
    async with openai_client(rig, storage) as client:
        file = await client.files.create(file=("in.jsonl", LINES), purpose="batch")
        made = [
            await client.batches.create(
                input_file_id=file.id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
                metadata={"n": str(n)},
            )
            for n in range(3)
        ]
        first = made[0]
        assert (first.status, first.metadata, first.errors) == ("validating", {"n": "0"}, None)
        assert first.expires_at == first.created_at + 86_400
        assert await rig.queue.batch_store.open_batches() == tuple(batch.id for batch in made)
        listed = [batch.id async for batch in client.batches.list(limit=2)]
        assert sorted(listed) == sorted(batch.id for batch in made)
        cancelled = await client.batches.cancel(first.id)
        assert cancelled.status == "cancelling"
        assert cancelled.cancelling_at is not None


@pytest.mark.parametrize("state", ["completed", "failed", "expired", "cancelled"])
async def test_an_ended_batch_stays_as_it_is(rig: Rig, http: httpx.AsyncClient, state: str) -> None:
    batch_id = (await create(http, await upload(http))).json()["id"]
    faults = (BatchFault("invalid_json_line", "no", 3),) if state == "failed" else ()
    outcome = Outcome(state, 5000, Tally(7, 2, 10, 20, 5), "file-out", "file-err", faults)  # type: ignore[arg-type]
    assert await rig.queue.batch_store.end_batch(batch_id, outcome)
    assert not await rig.queue.batch_store.end_batch(batch_id, Outcome("expired", 1))
    told = (await http.post(f"/v1/batches/{batch_id}/cancel")).json()
    assert (told["status"], told[f"{state}_at"], told["cancelling_at"]) == (
        state,
        5,
        None if state != "cancelled" else 0,
    )
    assert told["request_counts"] == {"total": 0, "completed": 7, "failed": 2}
    assert (told["output_file_id"], told["error_file_id"]) == ("file-out", "file-err")
    assert told["usage"]["total_tokens"] == 30
    assert told["errors"] == (
        None
        if state != "failed"
        else {
            "object": "list",
            "data": [{"code": "invalid_json_line", "message": "no", "line": 3, "param": None}],
        }
    )


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"completion_window": "48"}, "completion_window"),
        ({"completion_window": "0h"}, "completion_window"),
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"metadata": {"a": "x" * 600}}, "metadata.a"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 5}}, "output_expires_after.seconds"),
        ({"surprise": 1}, "surprise"),
    ],
)
async def test_a_batch_that_cannot_be_is_refused_with_the_field(
    http: httpx.AsyncClient, changes: dict[str, object], param: str
) -> None:
    refused = await create(http, await upload(http), None, **changes)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text


async def test_a_file_of_another_purpose_is_no_input(http: httpx.AsyncClient) -> None:
    refused = await create(http, await upload(http, purpose="user_data"))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input_file_id")


async def test_a_tenant_has_a_bounded_number_of_batches_and_is_told_what_to_do(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, rig: Rig
) -> None:
    monkeypatch.setattr("headway.gateway.batches.BATCHES_KEPT", 2)
    file_id = await upload(http)
    made = [(await create(http, file_id)).json()["id"] for _ in range(2)]
    refused = await create(http, file_id)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["type"]) == (429, "too_many_batches", "requests")
    assert "put more lines into each, up to 50000" in error["message"]
    assert refused.headers["x-should-retry"] == "false"
    assert len(await rig.queue.batch_store.open_batches()) == 2
    other = {"X-Tenant": "other"}
    assert (await create(http, await upload(http, other), other)).status_code == 200
    batch = await rig.queue.batch_store.batch(made[0])
    assert batch is not None
    await rig.queue.batch_store.forget_batch(batch.asked)
    assert (await create(http, file_id)).status_code == 200


async def test_an_input_that_expires_before_the_batch_must_end_is_refused_with_what_to_do(
    http: httpx.AsyncClient,
) -> None:
    response = await http.post(
        "/v1/files",
        files={"file": ("in.jsonl", LINES)},
        data={
            "purpose": "batch",
            "expires_after[anchor]": "created_at",
            "expires_after[seconds]": str(3 * 3600),
        },
    )
    file_id = response.json()["id"]
    error = (await create(http, file_id)).json()["error"]
    assert (error["code"], error["param"]) == ("file_expires_too_soon", "input_file_id")
    assert "completion_window of 2h" in error["message"]
    assert "expires_after[seconds] of 90000 or more" in error["message"]
    assert (await create(http, file_id, None, completion_window="2h")).status_code == 200
    assert (await create(http, file_id, None, completion_window="3h")).status_code == 400


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=999999", "after=nothing", "order=up"])
async def test_bad_questions_to_a_list_are_refused(http: httpx.AsyncClient, query: str) -> None:
    assert (await http.get(f"/v1/files?{query}")).status_code == 400


async def test_a_gateway_without_a_place_for_files_has_no_such_routes(rig: Rig) -> None:
    async with rig.client() as http:
        assert (await http.get("/v1/files")).status_code == 404


async def test_what_cannot_be_read_is_told_as_that(rig: Rig, http: httpx.AsyncClient) -> None:
    file_id = await upload(http)
    await rig.queue.batch_store._commands.call("SET", FileKeys.record(file_id), b"{")
    answer = await http.get(f"/v1/files/{file_id}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "record_unreadable")
