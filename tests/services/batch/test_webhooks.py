"""A tenant is told of a batch's end: signed, again until it arrives, and never at an address inside."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import openai
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.webhooks import BatchCompletedWebhookEvent
from standardwebhooks import Webhook as Verifier
from tests.services.batch.conftest import Service, chat_line
from tests.services.batch.webhook_receiver import Receiver, receiving

from headway.queueing.webhook_store import Webhook
from headway.services.batch import webhook_post
from headway.services.batch.commands import add_webhook
from headway.services.batch.webhook_delivery import PAUSES_SECONDS, deliver
from headway.services.batch.webhook_post import (
    WebhookFailedError,
    WebhookPost,
    WebhookRefusedError,
    is_public,
)
from headway.services.batch.webhook_signature import check_secret, new_secret
from headway.services.errors import UsageError


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


async def ended(service: Service, receiver: Receiver, *events: str) -> tuple[str, Webhook]:
    """A batch that has ended, for a tenant with a webhook."""
    webhook = Webhook("wh_1", "acme", receiver.url, new_secret(), events or ("batch.completed",))
    await service.queue.webhook_store.put(webhook)
    batch_id = await service.post(chat_line("a"))
    assert await service.turn(batch_id)
    return batch_id, webhook


async def due(service: Service, in_seconds: float = 0) -> tuple[str, ...]:
    now_ms = await service.queue.batch_store.now_ms()
    return await service.queue.webhook_store.due(now_ms + int(in_seconds * 1000) + 1, 10)


async def test_the_end_of_a_batch_is_told_with_a_signature_that_libraries_accept(
    service: Service, receiver: Receiver
) -> None:
    batch_id, webhook = await ended(service, receiver)
    (message_id,) = await due(service)
    await deliver(service.queue, WebhookPost(allows_private=True), message_id)
    ((headers, body),) = receiver.got
    Verifier(webhook.secret).verify(body, headers)
    client = openai.OpenAI(api_key="none", webhook_secret=webhook.secret)
    event = client.webhooks.unwrap(body, headers)
    assert isinstance(event, BatchCompletedWebhookEvent)
    assert event.data.id == batch_id
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.unwrap(body + b" ", headers)
    assert await due(service, 10**6) == ()


async def test_ending_a_batch_again_tells_nobody_again(service: Service, receiver: Receiver) -> None:
    batch_id, _ = await ended(service, receiver)
    await service.turn(batch_id)
    assert len(await due(service)) == 1


async def test_events_that_were_not_asked_for_are_not_sent(service: Service, receiver: Receiver) -> None:
    await ended(service, receiver, "batch.failed")
    assert await due(service, 10**6) == ()


async def test_a_receiver_that_fails_is_tried_again_later_under_the_same_id_and_given_up_in_the_end(
    service: Service, receiver: Receiver
) -> None:
    receiver.status = 500
    await ended(service, receiver)
    (message_id,) = await due(service)
    post = WebhookPost(allows_private=True)
    for pause in PAUSES_SECONDS:
        await deliver(service.queue, post, message_id)
        assert await due(service, pause - 2) == ()
        assert await due(service, pause + 1) == (message_id,)
    await deliver(service.queue, post, message_id)
    assert await due(service, 10**7) == ()
    assert {headers["webhook-id"] for headers, _ in receiver.got} == {message_id}
    assert len(receiver.got) == len(PAUSES_SECONDS) + 1


async def test_a_removed_webhook_hears_nothing_more(service: Service, receiver: Receiver) -> None:
    await ended(service, receiver)
    (message_id,) = await due(service)
    assert await service.queue.webhook_store.remove("acme", "wh_1")
    await deliver(service.queue, WebhookPost(allows_private=True), message_id)
    assert receiver.got == []
    assert await due(service, 10**7) == ()


def test_a_redirect_is_a_failure_and_is_not_followed(receiver: Receiver) -> None:
    receiver.status = 302
    with pytest.raises(WebhookFailedError, match="302"):
        WebhookPost(allows_private=True).post(receiver.url, {}, b"{}")
    assert len(receiver.got) == 1


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/",
        "https://user:pw@example.org/",
        "https://example.org:6379/",
        "ftp://example.org/",
        "https://",
        "https://exa mple.org/",
        "https://example.org/\r\nx: y",
        "https://[::1",
        "https://127.0.0.1/hook",
        "https://[fd00::1]/hook",
        "https://169.254.169.254/latest",
    ],
)
def test_urls_that_are_no_webhooks_are_refused(url: str) -> None:
    with pytest.raises(WebhookRefusedError):
        WebhookPost(allows_private=False).check_url(url)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("http://example.org/", "--webhook-allow-private, where tenants are trusted"),
        ("https://10.0.0.1/hook", "--webhook-allow-private, where tenants are trusted"),
        ("https://exa mple.org/", None),
        ("ftp://example.org/", None),
    ],
)
def test_the_option_is_named_to_whom_it_would_help(url: str, hint: str | None, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        add_webhook("acme", url, "", None, tmp_path, allows_private=False)
    assert refused.value.hint == hint


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::1",
        "fe80::1%eth0",
        "fd00::1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "ff02::1",
        "fec0::1",
        "::127.0.0.1",
        "64:ff9b:1::a00:1",
    ],
)
def test_addresses_inside_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700:4700::1111", "64:ff9b::808:808"])
def test_addresses_of_the_internet_are(address: str) -> None:
    assert is_public(address)


def test_a_name_with_one_address_inside_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def lookup(host: str, port: int, **_: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        return [(2, 1, 6, "", (address, port)) for address in ("8.8.8.8", "10.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    with pytest.raises(WebhookRefusedError, match=r"10\.0\.0\.1"):
        WebhookPost(allows_private=False).post("https://example.org/", {}, b"{}")


def test_a_name_that_changes_its_mind_is_asked_once_and_reached_where_it_was_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DNS rebinding: the first answer is harmless, the second would lead inside."""
    asked: list[str] = []
    reached: list[str] = []

    def lookup(host: str, port: int, **_: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        asked.append(host)
        return [(2, 1, 6, "", ("8.8.8.8" if len(asked) == 1 else "127.0.0.1", port))]

    def connect(place: tuple[str, int], *_: object) -> socket.socket:
        reached.append(place[0])
        raise ConnectionRefusedError("test")

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(WebhookFailedError):
        WebhookPost(allows_private=False).post("https://example.org/", {}, b"{}")
    assert (asked, reached) == (["example.org"], ["8.8.8.8"])


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_receiver_that_trickles_is_cut_off(monkeypatch: pytest.MonkeyPatch, scheme: str) -> None:
    """Each byte comes in time, the handshake or the answer never does."""
    monkeypatch.setattr(webhook_post, "TOTAL_SECONDS", 0.2)
    gave_up = threading.Event()

    def trickle(listener: socket.socket) -> None:
        link, _ = listener.accept()
        with link:
            # The head of a long TLS record, or of an answer; then byte after byte of it.
            link.sendall(b"\x16\x03\x03\x40\x00" if scheme == "https" else b"HTTP/1.1 2")
            with suppress(OSError):
                while not gave_up.wait(0.02):
                    link.sendall(b"\x02")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        receiver = threading.Thread(target=trickle, args=(listener,), daemon=True)
        receiver.start()
        url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}/"
        with pytest.raises(WebhookFailedError):
            WebhookPost(allows_private=True).post(url, {}, b"{}")
        gave_up.set()
        receiver.join()


@given(st.text(max_size=80))
def test_a_text_is_a_secret_or_refused(text: str) -> None:
    try:
        check_secret(text)
    except ValueError:
        return
    assert text.startswith("whsec_")


async def test_two_workers_with_one_message_send_it_once(service: Service, receiver: Receiver) -> None:
    await ended(service, receiver)
    (message_id,) = await due(service)
    post = WebhookPost(allows_private=True)
    await asyncio.gather(*(deliver(service.queue, post, message_id) for _ in range(5)))
    assert len(receiver.got) == 1


async def test_a_message_body_names_the_batch_and_nothing_of_its_content(
    service: Service, receiver: Receiver
) -> None:
    batch_id, _ = await ended(service, receiver)
    (message_id,) = await due(service)
    message = await service.queue.webhook_store.message(message_id)
    assert message is not None
    body = orjson.loads(message.body)
    assert set(body) == {"object", "id", "type", "created_at", "data"}
    assert body["data"] == {"id": batch_id}
    assert replace(message, tries=1).message_id == message_id
