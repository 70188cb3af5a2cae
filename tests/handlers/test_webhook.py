"""`webhook`: what the server gets, and what becomes of messages whatever the server does."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from rmqd import Batch, Retry, Suspend, testing
from rmqd_handlers.away import AwayError
from rmqd_handlers.message_values import to_record
from rmqd_handlers.webhook import Webhook
from tests.certificates import CA, CLIENT, certificate, key, server_context
from tests.handlers.messages import make_batch, make_message, meant
from tests.handlers.options import not_refused
from tests.servers.http_peer import CLOSE, HANG, OK, RESET, Answer, HttpPeer, http_peer, status
from tests.waiting import eventually

DATE = "Fri, 01 Jan 2027 00:00:00"
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


async def test_a_call_is_signed_as_standard_webhooks_has_it(peer: HttpPeer) -> None:
    secret = base64.b64encode(b"k" * 24).decode()
    async with started(peer.url, signing_secret=f"whsec_{secret}") as handler:
        await handler.handle(batch_of(b"body"))

    [request] = peer.requests
    headers = request.headers
    over = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.body".encode()
    expected = base64.b64encode(hmac.new(b"k" * 24, over, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"


async def test_a_message_that_the_server_refuses_is_a_dead_letter_and_those_behind_it_go_on(peer: HttpPeer) -> None:
    async with started(peer.url) as handler:
        for code in (400, 410, 413, 422):
            peer.requests.clear()
            peer.answers.extend([status(200), status(code, "no such customer")])
            batch = batch_of(b"1", b"2", b"3")
            await handler.handle(batch)

            assert decided(batch) == {0: "ack", 1: "dead_letter", 2: "ack"}
            assert batch.decisions()[1].reason == f"the server responded {code} Said: no such customer"
            assert peer.contents == [b"1", b"2", b"3"]


async def retried(answers: list[Answer], *bodies: bytes, **options: object) -> tuple[list[bytes], int]:
    """The contents and the number of keys that a server got which answered so at first."""
    async with http_peer() as peer:
        peer.answers.extend(answers)
        async with started(peer.url, **options) as handler:
            await handler.handle(batch_of(*bodies))
        return peer.contents, len({request.headers["idempotency-key"] for request in peer.requests})


async def test_what_may_pass_is_tried_again_in_place() -> None:
    codes = (401, 403, 404, 408, 429, 500, 503)
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


async def test_a_call_without_a_complete_answer_is_made_again() -> None:
    found = await asyncio.gather(*(retried([answer], b"1", timeout="500ms") for answer in INCOMPLETE.values()))

    assert dict(zip(INCOMPLETE, found, strict=True)) == dict.fromkeys(INCOMPLETE, ([b"1", b"1"], 1))


async def test_a_server_that_has_moved_is_called_once_and_the_message_waits(peer: HttpPeer) -> None:
    peer.answers.extend([status(301, Location="https://shop.example.org/new")] * 2)
    async with started(peer.url) as handler:
        with pytest.raises(Exception, match=r"301.*https://shop.example.org/new") as raised:
            await handler.handle(batch_of(b"1"))
    assert (meant(raised.value), peer.contents) == ("again", [b"1"])
    async with started(peer.url, on_status={301: "dead_letter"}) as handler:
        await handler.handle(batch := batch_of(b"1"))
    assert "https://shop.example.org/new" in batch.decisions()[0].reason


async def test_the_timeout_covers_the_whole_exchange() -> None:
    """Each byte of the headers comes in time, and all of them never do."""

    is_gone = asyncio.Event()

    async def trickle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nX: ")
        while not writer.transport.is_closing():
            writer.write(b"x")
            await asyncio.sleep(0.02)
        writer.close()
        is_gone.set()

    server = await asyncio.start_server(trickle, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with server, started(url, timeout="100ms", retry_for="0s") as handler:
        with pytest.raises(TimeoutError, match=r"no complete response within 0\.1 s"):
            await asyncio.wait_for(handler.handle(batch_of(b"1")), 2)
        await is_gone.wait()


@pytest.mark.parametrize(("action", "outcome"), [("wait", "again"), ("retry", "retry")])
async def test_what_a_server_does_not_say_of_the_message_counts_no_attempt_unless_the_options_say_so(
    peer: HttpPeer, action: str, outcome: str
) -> None:
    for answer in (status(503), status(503, Retry_After="100"), status(503, Retry_After=f"{DATE} +{'9' * 17}")):
        peer.answers.append(answer)
        async with started(peer.url, retry_for="0s", on_status={503: action}) as handler:
            with pytest.raises((AwayError, Retry)) as raised:
                await handler.handle(batch_of(b"1"))
        assert meant(raised.value) == outcome


async def test_after_its_time_the_batch_fails_and_what_was_taken_stays_taken(peer: HttpPeer) -> None:
    peer.answers.extend([Answer(OK), *[status(500, "out of order")] * 50])
    batch = batch_of(b"1", b"2", b"3")
    async with started(peer.url, retry_for="200ms") as handler:
        with pytest.raises(Exception, match="500 Said: out of order"):
            await handler.handle(batch)

    assert decided(batch) == {0: "ack"}


async def test_in_an_orderly_group_what_stands_behind_a_message_that_fails_waits(peer: HttpPeer) -> None:
    """And counts no attempt: it was not tried."""
    peer.answers.extend([status(200), status(500)])
    batch = testing.make_batch(*batch_of(b"1", b"2", b"3", b"4"), consume_mode="orderly")
    async with started(peer.url, retry_for="0s") as handler:
        with pytest.raises(AwayError, match="500"):
            await handler.handle(batch)

    assert peer.contents == [b"1", b"2"]
    assert decided(batch) == {0: "ack", 2: "again", 3: "again"}


async def test_a_server_that_asks_for_more_time_than_there_is_gets_it_by_a_delay_level(peer: HttpPeer) -> None:
    for later in ("100", format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)):
        peer.requests.clear()
        peer.answers.append(status(429, Retry_After=later))
        async with started(peer.url) as handler:
            with pytest.raises(Retry) as asked:
                await handler.handle(batch_of(b"1"))
            with pytest.raises(Retry):
                await handler.handle(batch_of(b"2"))  # the server is left alone by all

        assert asked.value.delay_level == 6, later  # 2 min, the first that is not shorter
        assert peer.contents == [b"1"], later


@pytest.mark.parametrize("per_call", ["message", "batch"])
async def test_in_an_orderly_group_the_queue_rests_for_the_time_that_a_server_asks_for(
    peer: HttpPeer, per_call: str
) -> None:
    """Such a group knows no delay levels: it would ask again after its usual second, and count an attempt each time."""
    peer.answers.append(status(429, Retry_After="100"))
    batch = testing.make_batch(*batch_of(b"1", b"2"), consume_mode="orderly")
    async with started(peer.url, per_call=per_call, format="json") as handler:
        with pytest.raises(Suspend) as suspended:
            await handler.handle(batch)

    assert suspended.value.seconds is not None
    assert 90 < suspended.value.seconds <= 100
    assert len(peer.contents) == 1
    assert decided(batch) == ({1: "again"} if per_call == "message" else {})


async def test_the_policy_decides_by_status(peer: HttpPeer) -> None:
    peer.answers.extend([status(409), status(404), status(202)])
    batch = batch_of(b"1", b"2", b"3")
    on_status = {409: "ack", "4xx": "dead_letter", "2xx": "dead_letter"}
    async with started(peer.url, on_status=on_status, max_connections=1) as handler:  # one call after the other
        await handler.handle(batch)

    assert decided(batch) == {0: "ack", 1: "dead_letter", 2: "dead_letter"}


async def test_a_server_that_goes_and_comes_back_is_waited_for(peer: HttpPeer) -> None:
    async with started(peer.url) as handler:
        await handler.handle(batch_of(b"1"))
        await peer.kill()
        waiting = [asyncio.create_task(handler.handle(batch_of(b"%d" % number))) for number in range(2, 8)]
        await peer.start()
        await asyncio.gather(*waiting)

    assert sorted(peer.contents) == [b"%d" % number for number in range(1, 8)]


async def test_no_more_calls_at_once_than_connections(peer: HttpPeer) -> None:
    peer.answers.extend([Answer(b"", HANG)] * 2)
    async with started(peer.url, max_connections=2, timeout="10s") as handler:
        tasks = [asyncio.create_task(handler.handle(batch_of(b"%d" % number))) for number in range(5)]
        await eventually(lambda: len(peer.requests) == 2, "two calls are under way")
        assert peer.connections == 2
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await handler.handle(batch_of(b"after"))

    assert peer.contents[-1] == b"after"


async def test_tls_with_a_certificate_of_the_clients() -> None:
    files = {"ca_file": str(CA), "cert_file": str(certificate(CLIENT)), "key_file": str(key(CLIENT))}
    async with http_peer(server_context(wants_client=True)) as peer:
        async with started(peer.url, tls=files) as handler:
            await handler.handle(batch_of(b"1"))
        async with started(peer.url, retry_for="0s") as handler:
            with pytest.raises(httpx.TransportError, match="CERTIFICATE_VERIFY_FAILED"):
                await handler.handle(batch_of(b"2"))

        assert peer.contents == [b"1"]


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
