"""`webhook`: requests to the server, and the outcome of messages for each kind of response."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rmqd import Batch
from rmqd_handlers.message_values import to_record
from rmqd_handlers.webhook import Webhook
from rmqd_handlers.webhook.connections import Tls
from tests.handlers.messages import make_batch, make_message
from tests.handlers.options import not_refused
from tests.servers.http_peer import CLOSE, HANG, RESET, Answer, HttpPeer, http_peer, status

HALF = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf of it"


@pytest.fixture
async def peer() -> AsyncIterator[HttpPeer]:
    async with http_peer() as running:
        yield running


@asynccontextmanager
async def started(url: str, **options: object) -> AsyncIterator[Webhook]:
    handler = Webhook(Webhook.Options.model_validate({"url": url, **options}))
    await handler.start()
    try:
        yield handler
    finally:
        await handler.stop()


def batch_of(*bodies: bytes) -> Batch:
    return make_batch(*(make_message(body, queue_offset=place) for place, body in enumerate(bodies)))


def decided(batch: Batch) -> dict[int, str]:
    return {place: one.outcome.value for place, one in batch.decisions().items()}


async def test_a_body_is_posted_as_it_is_with_the_fields_as_headers(peer: HttpPeer) -> None:
    message = make_message(b"\xff\x00", keys="grüße 100%", tags="paid")
    async with started(peer.url, content_type="image/png", headers={"Authorization": "Bearer t"}) as handler:
        await handler.handle(make_batch(message))

    [request] = peer.requests
    assert request.line == "POST /hook HTTP/1.1"
    assert request.content == b"\xff\x00"
    expected = {
        "content-type": "image/png",
        "authorization": "Bearer t",
        "idempotency-key": message.msg_id,
        "x-rocketmq-topic": "orders",
        "x-rocketmq-keys": "gr%C3%BC%C3%9Fe%20100%25",
        "x-rocketmq-tags": "paid",
        "x-rocketmq-message-id": message.msg_id,
    }
    assert expected.items() <= request.headers.items()


async def test_connections_are_kept(peer: HttpPeer) -> None:
    async with started(peer.url) as handler:
        for _ in range(5):
            await handler.handle(batch_of(b"1", b"2"))

    assert (len(peer.requests), peer.connections) == (10, 1)


async def test_a_batch_is_one_call(peer: HttpPeer) -> None:
    batch = batch_of(b"1", b"2")
    async with started(peer.url, per_call="batch", format="json") as handler:
        await handler.handle(batch)
        await handler.handle(batch)

    first, again = peer.requests
    assert first.document == [to_record(message) for message in batch]
    assert first.headers["idempotency-key"] == again.headers["idempotency-key"]


async def test_a_cloud_event_in_json(peer: HttpPeer) -> None:
    message = make_message(b'{"id": 7}', keys="order-7", tags="paid")
    async with started(peer.url, format="cloudevents", event_type="shop.order") as handler:
        await handler.handle(make_batch(message))

    [request] = peer.requests
    assert request.headers["content-type"] == "application/cloudevents+json"
    assert request.document == {
        "specversion": "1.0",
        "id": message.msg_id,
        "source": "/topics/orders",
        "type": "shop.order",
        "time": "2026-01-01T00:00:00.000+00:00",
        "subject": "order-7",
        "topic": "orders",
        "tags": "paid",
        "datacontenttype": "application/json",
        "data": {"id": 7},
    }


async def test_a_call_is_signed_as_standard_webhooks_specifies(peer: HttpPeer) -> None:
    secret = base64.b64encode(b"k" * 24).decode()
    async with started(peer.url, signing_secret=f"whsec_{secret}") as handler:
        await handler.handle(batch_of(b"body"))

    [request] = peer.requests
    headers = request.headers
    over = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.body".encode()
    expected = base64.b64encode(hmac.new(b"k" * 24, over, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"


async def test_a_refused_message_is_dead_lettered_and_later_messages_are_sent(peer: HttpPeer) -> None:
    async with started(peer.url) as handler:
        for code in (400, 413, 415, 422):
            peer.requests.clear()
            peer.answers.extend([status(200), status(code, "no such customer")])
            batch = batch_of(b"1", b"2", b"3")
            await handler.handle(batch)

            assert decided(batch) == {0: "ack", 1: "dead_letter", 2: "ack"}
            assert batch.decisions()[1].reason == f"the server responded {code} Said: no such customer"
            assert peer.contents == [b"1", b"2", b"3"]


async def retried(answers: list[Answer], *bodies: bytes, **options: object) -> tuple[list[bytes], int]:
    """Send to a server whose first responses are `answers`. Returns the received contents and the number of
    idempotency keys.
    """
    async with http_peer() as peer:
        peer.answers.extend(answers)
        async with started(peer.url, **options) as handler:
            await handler.handle(batch_of(*bodies))
        return peer.contents, len({request.headers["idempotency-key"] for request in peer.requests})


async def test_statuses_that_may_be_temporary_are_retried_in_place() -> None:
    codes = (401, 403, 404, 406, 408, 410, 429, 500, 503)
    found = await asyncio.gather(*(retried([status(code)] * 2, b"1", b"2") for code in codes))

    assert dict(zip(codes, found, strict=True)) == dict.fromkeys(codes, ([b"1", b"1", b"1", b"2"], 2))


INCOMPLETE = {
    "reset": Answer(b"", RESET),
    "closed": Answer(b"", CLOSE),
    "half": Answer(HALF, CLOSE),
    "half and reset": Answer(HALF, RESET),
    "half and silent": Answer(HALF, HANG),
    "silent": Answer(b"", HANG),
    "no HTTP": Answer(b"this is no HTTP\r\n\r\n", CLOSE),
    "half a chunk": Answer(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhal", CLOSE),
}


async def test_a_call_without_a_complete_response_is_repeated() -> None:
    found = await asyncio.gather(*(retried([answer], b"1", timeout="500ms") for answer in INCOMPLETE.values()))

    wrong = {name: one for name, one in zip(INCOMPLETE, found, strict=True) if len(one[0]) < 2 or one[1] != 1}
    assert not wrong  # on a busy machine the second call may run out of time too


async def test_on_status_decides_by_the_status(peer: HttpPeer) -> None:
    peer.answers.extend([status(409), status(404), status(202)])
    batch = batch_of(b"1", b"2", b"3")
    on_status = {409: "ack", "4xx": "dead_letter", "2xx": "dead_letter"}
    async with started(peer.url, on_status=on_status, max_connections=1) as handler:  # one call after the other
        await handler.handle(batch)

    assert decided(batch) == {0: "ack", 1: "dead_letter", 2: "dead_letter"}


async def test_calls_wait_until_a_killed_server_is_restarted(peer: HttpPeer) -> None:
    async with started(peer.url) as handler:
        await handler.handle(batch_of(b"1"))
        await peer.kill()
        waiting = [asyncio.create_task(handler.handle(batch_of(b"%d" % number))) for number in range(2, 8)]
        await peer.start()
        await asyncio.gather(*waiting)

    assert sorted(peer.contents) == [b"%d" % number for number in range(1, 8)]


def test_wrong_options_are_refused() -> None:
    wrong: list[dict[str, object]] = [
        {"url": "ftp://host/"},
        {"url": "http://host/a b"},
        {"url": "http://host/\n"},
        {"url": "http://host:99999/"},
        {"headers": {"X Shop": "a"}},
        {"headers": {"": "a"}},
        {"headers": {"X-Shop": "a\r\nX-Other: b"}},
        {"headers": {"X-Shop": "token\n"}},
        {"headers": {"X-Shop": "grün"}},
        {"per_call": "batch"},
        {"per_call": "batch", "format": "cloudevents_binary"},
        {"on_status": {"4x": "ack"}},
        {"on_status": {"700": "ack"}},
        {"on_status": {"404": "explode"}},
        {"signing_secret": "whsec_no base64"},
        {"timeout": "0s"},
        {"tls": {"key_file": "a"}},
        {"tls": {"colour": "red"}},
    ]

    assert not_refused(Webhook.Options, wrong, url="http://localhost/") == []


def test_secrets_are_not_shown() -> None:
    secrets = {"signing_secret": "geheim", "proxy": "http://u:geheim@p", "tls": {"key_password": "geheim"}}
    options = Webhook.Options.model_validate({"url": "http://a/", **secrets})

    assert "geheim" not in json.dumps(options.model_dump(mode="json"))


@pytest.mark.parametrize("keys", [("ca_file",), ("cert_file",), ("cert_file", "key_file")])
def test_the_error_of_a_missing_pem_file_names_the_file(tmp_path: Path, keys: tuple[str, ...]) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.pem"):
        Tls.model_validate(dict.fromkeys(keys, tmp_path / "absent.pem")).context()
