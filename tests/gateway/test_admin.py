"""Limits, keys and usage over HTTP: for administrators only, and nothing of a key is ever told twice."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import date
from typing import Any

import httpx
import pytest
from structlog.typing import EventDict
from tests.gateway.conftest import Rig, post_job
from tests.gateway.scripted_worker import card
from tests.gateway.test_chat import CHAT
from tests.gateway.test_chat import URL as CHAT_URL
from tests.gateway.test_tenants import error_of

from headway.queueing.day_usage import DayUsage
from headway.queueing.memory_queue import MemoryQueue
from headway.queueing.tenant_book import digest_of

OPERATOR = "the operator's own key"
AS_OPERATOR = {"Authorization": f"Bearer {OPERATOR}"}
ROUTES = [
    ("GET", "/admin/tenants"),
    ("POST", "/admin/tenants"),
    ("GET", "/admin/tenants/acme"),
    ("PATCH", "/admin/tenants/acme"),
    ("PUT", "/admin/tenants/acme"),
    ("DELETE", "/admin/tenants/acme"),
    ("GET", "/admin/keys"),
    ("POST", "/admin/keys"),
    ("DELETE", "/admin/keys/0123456789ab"),
    ("GET", "/admin/usage"),
]


@pytest.fixture
async def admin(rig: Rig) -> AsyncGenerator[httpx.AsyncClient]:
    """A client with the key that the process was started with."""
    async with rig.client(rig.app(admin_key_digest=digest_of(OPERATOR))) as http:
        http.headers.update(AS_OPERATOR)
        yield http


async def made_key(http: httpx.AsyncClient, tenant: str = "acme", **fields: object) -> dict[str, Any]:
    response = await http.post("/admin/keys", json={"tenant": tenant} | fields)
    assert response.status_code == 201, response.text
    made: dict[str, Any] = response.json()
    return made


def bearer(key: dict[str, Any]) -> dict[str, str]:
    return {"Authorization": f"Bearer {key['key']}"}


# -- who may ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "path"), ROUTES)
async def test_nobody_but_an_administrator_gets_in_not_even_in_open_mode(
    method: str, path: str, http: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    for headers in ({}, {"Authorization": "Basic eA=="}):
        refused = await http.request(method, path, headers=headers, json={})
        assert (refused.status_code, error_of(refused)["code"]) == (401, "missing_api_key")
    tenants = await made_key(admin)
    for headers in (bearer(tenants), {"Authorization": "Bearer nonsense"}, AS_OPERATOR):
        refused = await http.request(method, path, headers=headers, json={})
        assert (refused.status_code, error_of(refused)["code"]) == (403, "admin_key_required")
        assert "--admin" in error_of(refused)["message"]


async def test_an_administrators_key_of_the_queue_opens_every_gateway(
    http: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    key = await made_key(admin, "ops", name="laptop", admin=True)
    assert (await http.get("/admin/keys", headers=bearer(key))).status_code == 200
    posted = await http.post("/v1/jobs", json={"model": "tiny", "prompt": "a"}, headers=bearer(key))
    assert posted.status_code == 202, "it is its tenant's key as well"
    assert (await admin.delete(f"/admin/keys/{key['id']}?open=true")).status_code == 200
    assert (await http.get("/admin/keys", headers=bearer(key))).status_code == 403


async def test_the_log_says_which_administrator_it_was_and_never_a_key(
    admin: httpx.AsyncClient, http: httpx.AsyncClient, logs: list[EventDict]
) -> None:
    key = await made_key(admin, "ops", admin=True)
    await http.get("/admin/tenants", headers=bearer(key))
    told = [line["admin"] for line in logs if line.get("admin")]
    assert told == ["operator", key["id"]]
    assert key["key"] not in str(logs)
    assert OPERATOR not in str(logs)


async def test_without_an_operators_key_no_secret_is_one(http: httpx.AsyncClient) -> None:
    for secret in ("", "-" * 64, digest_of("")):
        assert (
            await http.get("/admin/keys", headers={"Authorization": f"Bearer {secret}"})
        ).status_code == 403


# -- tenants ------------------------------------------------------------------------------------------


async def test_a_tenants_limits_are_made_changed_replaced_and_removed(admin: httpx.AsyncClient) -> None:
    made = await admin.post("/admin/tenants", json={"tenant": "acme", "rpm": 60, "weight": 2.0})
    assert made.status_code == 201
    assert made.json() | {"rpm": 60, "weight": 2.0, "tpm": None, "has_own_limits": True} == made.json()
    again = await admin.post("/admin/tenants", json={"tenant": "acme", "rpm": 1})
    assert (again.status_code, error_of(again)["code"]) == (409, "tenant_exists")
    changed = (await admin.patch("/admin/tenants/acme", json={"tpm": 5000, "rpm": None})).json()
    assert (changed["rpm"], changed["tpm"], changed["weight"]) == (None, 5000, 2.0)
    replaced = (await admin.put("/admin/tenants/acme", json={"concurrency": 3})).json()
    assert (replaced["tpm"], replaced["weight"], replaced["concurrency"]) == (None, 1.0, 3)
    listed = (await admin.get("/admin/tenants")).json()["data"]
    assert [each["tenant"] for each in listed] == ["acme"]
    assert (await admin.delete("/admin/tenants/acme")).json()["deleted"] is True
    gone = await admin.delete("/admin/tenants/acme")
    assert (gone.status_code, error_of(gone)["code"]) == (404, "tenant_not_found")
    shown = (await admin.get("/admin/tenants/acme")).json()
    assert (shown["has_own_limits"], shown["concurrency"]) == (False, None)


async def test_a_limit_that_was_set_over_http_holds(admin: httpx.AsyncClient) -> None:
    await admin.put("/admin/tenants/default", json={"rpm": 1})
    assert (await admin.post(CHAT_URL, json=CHAT)).status_code == 200
    refused = await admin.post(CHAT_URL, json=CHAT)
    assert (refused.status_code, error_of(refused)["code"]) == (429, "requests_per_minute_exceeded")
    shown = (await admin.get("/admin/tenants/default")).json()
    assert shown["usage"]["requests"]["remaining"] == 0


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"tenant": "acme", "rpm": 0}, "invalid_value", "rpm"),
        ({"tenant": "acme", "rpm": "9"}, "invalid_value", "rpm"),
        ({"tenant": "acme", "colour": 1}, "unknown_parameter", "colour"),
        ({"tenant": "no spaces"}, "invalid_value", "tenant"),
        ({"tenant": "*", "weight": 2.0}, "invalid_value", "weight"),
        ({"rpm": 1}, "missing_required_parameter", "tenant"),
    ],
)
async def test_a_bad_limit_is_refused_and_changes_nothing(
    body: dict[str, Any], code: str, param: str, admin: httpx.AsyncClient
) -> None:
    refused = await admin.post("/admin/tenants", json=body)
    assert (refused.status_code, error_of(refused)["code"], error_of(refused)["param"]) == (400, code, param)
    assert (await admin.get("/admin/tenants")).json()["data"] == []


# -- keys ---------------------------------------------------------------------------------------------


async def test_a_key_is_shown_once_and_works_until_it_is_revoked(
    admin: httpx.AsyncClient, http: httpx.AsyncClient
) -> None:
    other = await made_key(admin, "other")
    key = await made_key(admin, "acme", name="build server")
    listed = await admin.get("/admin/keys")
    assert key["key"] not in listed.text
    assert {"id": key["id"], "tenant": "acme", "name": "build server", "admin": False}.items() <= next(
        each for each in listed.json()["data"] if each["id"] == key["id"]
    ).items()
    assert (await http.get("/v1/models", headers=bearer(key))).status_code == 200
    assert (await admin.delete(f"/admin/keys/{key['id']}")).status_code == 200
    assert (await http.get("/v1/models", headers=bearer(key))).status_code == 401
    gone = await admin.delete(f"/admin/keys/{key['id']}")
    assert (gone.status_code, error_of(gone)["code"]) == (404, "key_not_found")
    last = await admin.delete(f"/admin/keys/{other['id']}")
    assert (last.status_code, error_of(last)["code"]) == (409, "last_key")
    assert (await admin.delete(f"/admin/keys/{other['id']}?open=true")).status_code == 200
    assert (await http.get("/v1/models")).status_code == 200


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "missing_required_parameter", "tenant"),
        ({"tenant": 7}, "invalid_type", "tenant"),
        ({"tenant": "*"}, "invalid_value", "tenant"),
        ({"tenant": "acme", "name": "x" * 201}, "invalid_value", "name"),
        ({"tenant": "acme", "admin": "yes"}, "invalid_type", "admin"),
        ({"tenant": "acme", "key": "hw-mine"}, "unknown_parameter", "key"),
    ],
)
async def test_a_bad_key_is_refused(
    body: dict[str, Any], code: str, param: str, admin: httpx.AsyncClient
) -> None:
    refused = await admin.post("/admin/keys", json=body)
    assert (refused.status_code, error_of(refused)["code"], error_of(refused)["param"]) == (400, code, param)


# -- usage --------------------------------------------------------------------------------------------


async def test_usage_is_told_by_day_and_tenant_also_of_those_without_limits(
    admin: httpx.AsyncClient, rig: Rig
) -> None:
    await admin.post(CHAT_URL, json=CHAT, headers={"X-Tenant": "acme"})
    await admin.post(CHAT_URL, json=CHAT | {"n": 2}, headers={"X-Tenant": "acme"})
    await post_job(rig, tenant="other")
    await rig.until_ended(3)
    everything = (await admin.get("/admin/usage")).json()
    shown = {row["tenant"]: row for row in everything["data"]}
    assert shown["acme"] | {"jobs": 2, "prompt_tokens": 14, "completion_tokens": 15} == shown["acme"]
    assert shown["other"]["total_tokens"] == 12
    assert {row["day"] for row in everything["data"]} <= {everything["from"], everything["to"]}
    one = (await admin.get("/admin/usage", params={"tenant": "other", "model": "tiny"})).json()["data"]
    assert [row["tenant"] for row in one] == ["other"]
    long_ago = {"from": "1999-01-01", "to": "1999-01-31"}
    assert (await admin.get("/admin/usage", params=long_ago)).json() == long_ago | {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


async def test_usage_comes_page_by_page_each_row_once_and_reads_one_day_of_one_model_at_a_time(
    admin: httpx.AsyncClient, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = rig.queue
    assert isinstance(queue, MemoryQueue)
    days = [date(2026, 11, number) for number in (1, 2, 3)]
    for model in ("tiny", "org/other"):
        await queue.heartbeat(card(f"w-{model.replace('/', '-')}", model=model), ttl_seconds=60)
        for day in days:
            used = queue._lane(model).used._days.setdefault(day, {})
            used.update({f"t{number:03}": (1, 2, 3) for number in range(20)} | {"*": (5, 6, 7)})
    reads: list[tuple[date, ...]] = []
    usage = queue.usage

    async def counted(model: str, days: Sequence[date], tenant: str | None = None) -> tuple[DayUsage, ...]:
        reads.append(tuple(days))
        return await usage(model, days, tenant)

    monkeypatch.setattr(queue, "usage", counted)
    span = {"from": "2026-11-01", "to": "2026-11-03"}
    rows: list[dict[str, Any]] = []
    page: dict[str, Any] = {"has_more": True, "last_id": None}
    while page["has_more"]:
        more = {"after": page["last_id"]} if page["last_id"] else {}
        before = len(reads)
        page = (await admin.get("/admin/usage", params=span | more | {"limit": "25"})).json()
        assert len(page["data"]) == 25 or not page["has_more"]
        assert len(reads) - before <= 3, "and no day before the page is read again"
        rows += page["data"]
    assert {len(each) for each in reads} == {1}
    assert len(rows) == len({row["id"] for row in rows}) == 3 * 2 * 21
    assert [row["id"] for row in rows] == sorted(row["id"] for row in rows)
    one = (await admin.get("/admin/usage", params=span | {"tenant": "t007", "limit": "5"})).json()
    assert [(row["day"][-1], row["model"]) for row in one["data"]] == [
        (day, model) for day in "123" for model in ("org/other", "tiny")
    ][:5]
    assert one["has_more"] is True


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"from": "yesterday"}, "from"),
        ({"to": "9999-12-31"}, "to"),
        ({"from": "2026-02-02", "to": "2026-02-01"}, "from"),
        ({"from": "2026-01-01", "to": "2026-12-31"}, "from"),
        ({"model": "no model"}, "model"),
        ({"tenant": "no tenant"}, "tenant"),
        ({"limit": "0"}, "limit"),
        ({"limit": "10001"}, "limit"),
        ({"after": "yesterday/tiny/acme"}, "after"),
    ],
)
async def test_a_bad_span_of_days_is_refused(
    query: dict[str, str], param: str, admin: httpx.AsyncClient
) -> None:
    refused = await admin.get("/admin/usage", params=query)
    assert (refused.status_code, error_of(refused)["param"]) == (400, param)
