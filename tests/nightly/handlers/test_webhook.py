"""`webhook`: further formats, refusals and connections."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import httpx
import pytest

from rmqd import Retry, Suspend, testing
from rmqd_handlers.away import CounterpartUnavailableError
from rmqd_handlers.webhook.connections import retry_after_seconds
from tests.certificates import CA, CLIENT, CLIENT_EXPIRED, certificate, key, server_context
from tests.handlers.messages import make_batch, make_message, meant
from tests.handlers.test_webhook import batch_of, decided, peer, started
from tests.servers.http_peer import HANG, OK, Answer, HttpPeer, http_peer, status
from tests.waiting import eventually

__all__ = ["peer"]


async def test_a_batch_of_cloud_events_omits_bodies_that_are_not_json(peer: HttpPeer) -> None:
    batch = batch_of(b"1", b"no JSON", b"12345678901234567.890", b"NaN")
    async with started(peer.url, format="cloudevents", per_call="batch") as handler:
        await handler.handle(batch)

    [request] = peer.requests
    assert request.headers["content-type"] == "application/cloudevents-batch+json"
    assert [event["data"] for event in json.loads(request.content, parse_float=str)] == [1, "12345678901234567.890"]
    assert decided(batch) == {1: "dead_letter", 3: "dead_letter"}


async def test_odd_message_fields_do_not_break_headers_or_block_other_messages(peer: HttpPeer) -> None:
    odd = testing.make_message(b"1", msg_id="a\r\nX-Injected: 1", born_timestamp=2**62)
    for kind, expected in (("body", [b"1", b"2"]), ("cloudevents_binary", [b"2"])):
        peer.requests.clear()
        batch = make_batch(odd, make_message(b"2"))
        async with started(peer.url, format=kind) as handler:
            await handler.handle(batch)
        assert peer.contents == expected
        assert "x-injected" not in peer.requests[0].headers

    assert decided(batch) == {0: "dead_letter", 1: "ack"}


async def test_data_that_is_not_json_is_text_or_base64(peer: HttpPeer) -> None:
    async with started(peer.url, format="cloudevents", content_type="text/plain") as handler:
        await handler.handle(batch_of(b"text"))
        await handler.handle(batch_of(b"\xff"))

    found = [
        {name: value for name, value in request.document.items() if name.startswith("data_") or name == "data"}
        for request in peer.requests
    ]
    assert found == [{"data": "text"}, {"data_base64": "/w=="}]


@pytest.mark.parametrize(
    "options", [{"url": "https://exa\u200bmple.com/"}, {"content_type": "text/plain\nX: 1"}, {"signing_secret": ""}]
)
async def test_invalid_settings_fail_the_start(peer: HttpPeer, options: dict[str, str]) -> None:
    with pytest.raises((httpx.InvalidURL, ValueError), match=r"nvalid|valid header value|is empty"):
        async with started(options.pop("url", peer.url), **options):
            pytest.fail("it started")


async def test_the_signature_covers_only_the_content(peer: HttpPeer) -> None:
    async with started(peer.url, signing_secret="secret", signing="sha256") as handler:
        await handler.handle(batch_of(b"body"))

    expected = hmac.new(b"secret", b"body", hashlib.sha256).hexdigest()
    assert peer.requests[0].headers["x-hub-signature-256"] == f"sha256={expected}"


async def test_a_failed_message_does_not_affect_the_rest_of_its_batch(peer: HttpPeer) -> None:
    peer.answers.extend([status(200), status(500), status(200)])
    batch = batch_of(b"1", b"2", b"3")
    async with started(peer.url, retry_for="0s") as handler:
        with pytest.raises(CounterpartUnavailableError, match="500"):
            await handler.handle(batch)

    assert peer.contents == [b"1", b"2", b"3"]
    assert decided(batch) == {0: "ack", 2: "ack"}


def test_retry_after_is_limited_to_the_longest_delay_level() -> None:
    for header in ("999999999", "Fri, 31 Dec 2100 23:59:59 GMT"):
        assert retry_after_seconds(header) == 2 * 60 * 60, header


async def test_an_endless_response_is_not_read_to_the_end(peer: HttpPeer) -> None:
    peer.answers.append(Answer(b"HTTP/1.1 400 No\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 200_000, HANG))
    async with started(peer.url, timeout="30s") as handler:
        batch = batch_of(b"1")
        await handler.handle(batch)

    assert len(batch.decisions()[0].reason) < 1000


async def test_a_missing_certificate_fails_the_start(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        async with started("https://localhost:1/", tls={"ca_file": str(tmp_path / "missing.pem")}):
            pass


async def test_a_proxy_gets_the_call(peer: HttpPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = f"http://user:pass@localhost:{peer.port}"
    monkeypatch.setenv("HTTP_PROXY", "http://localhost:1")  # the option overrides it
    async with started("http://shop.example.org/hook", proxy=proxy) as handler:
        await handler.handle(batch_of(b"1"))

    [request] = peer.requests
    assert request.line == "POST http://shop.example.org/hook HTTP/1.1"
    assert request.headers["proxy-authorization"] == f"Basic {base64.b64encode(b'user:pass').decode()}"


async def test_unusual_but_valid_urls_and_headers_are_accepted(peer: HttpPeer) -> None:
    headers = {"X-Empty": "", "X_Under.score~": "a \t b", "x-one": "~"}
    async with started(f"{peer.url}/a%20b?q=grün&x={{y}}", headers=headers) as handler:
        await handler.handle(batch_of(b"1"))

    [request] = peer.requests
    assert {name: request.headers[name.lower()] for name in headers} == headers


async def test_a_cloud_event_with_its_attributes_as_headers(peer: HttpPeer) -> None:
    message = make_message(b"\xff", keys="grüße")
    options = {"format": "cloudevents_binary", "content_type": "image/png", "event_source": "urn:shop"}
    async with started(peer.url, **options) as handler:
        await handler.handle(make_batch(message))

    [request] = peer.requests
    expected = {
        "content-type": "image/png",
        "ce-specversion": "1.0",
        "ce-id": message.msg_id,
        "ce-source": "urn:shop",
        "ce-type": "rocketmq.message",
        "ce-subject": "gr%C3%BC%C3%9Fe",
    }
    assert expected.items() <= request.headers.items()
    assert request.content == b"\xff"


DATE = "Fri, 01 Jan 2027 00:00:00"


async def test_a_redirect_is_not_followed_and_the_message_waits(peer: HttpPeer) -> None:
    peer.answers.extend([status(301, Location="https://shop.example.org/new")] * 2)
    async with started(peer.url) as handler:
        with pytest.raises(Exception, match=r"301.*https://shop.example.org/new") as raised:
            await handler.handle(batch_of(b"1"))
    assert (meant(raised.value), peer.contents) == ("again", [b"1"])
    async with started(peer.url, on_status={301: "dead_letter"}) as handler:
        await handler.handle(batch := batch_of(b"1"))
    assert "https://shop.example.org/new" in batch.decisions()[0].reason


async def test_the_timeout_covers_the_whole_exchange() -> None:
    """The server sends the headers byte by byte and never completes them."""

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
async def test_a_status_503_counts_an_attempt_only_if_on_status_says_retry(
    peer: HttpPeer, action: str, outcome: str
) -> None:
    for answer in (status(503), status(503, Retry_After="100"), status(503, Retry_After=f"{DATE} +{'9' * 17}")):
        peer.answers.append(answer)
        async with started(peer.url, retry_for="0s", on_status={503: action}) as handler:
            with pytest.raises((CounterpartUnavailableError, Retry)) as raised:
                await handler.handle(batch_of(b"1"))
        assert meant(raised.value) == outcome


async def test_after_retry_for_the_batch_fails_and_accepted_messages_stay_acknowledged(peer: HttpPeer) -> None:
    peer.answers.extend([Answer(OK), *[status(500, "out of order")] * 50])
    batch = batch_of(b"1", b"2", b"3")
    async with started(peer.url, retry_for="200ms") as handler:
        with pytest.raises(Exception, match="500 Said: out of order"):
            await handler.handle(batch)

    assert decided(batch) == {0: "ack"}


async def test_messages_after_a_failed_one_wait_in_an_orderly_group(peer: HttpPeer) -> None:
    """They count no attempt, because they were not sent."""
    peer.answers.extend([status(200), status(500)])
    batch = testing.make_batch(*batch_of(b"1", b"2", b"3", b"4"), consume_mode="orderly")
    async with started(peer.url, retry_for="0s") as handler:
        with pytest.raises(CounterpartUnavailableError, match="500"):
            await handler.handle(batch)

    assert peer.contents == [b"1", b"2"]
    assert decided(batch) == {0: "ack", 2: "again", 3: "again"}


async def test_a_retry_after_longer_than_retry_for_becomes_a_delay_level(peer: HttpPeer) -> None:
    for later in ("100", format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)):
        peer.requests.clear()
        peer.answers.append(status(429, Retry_After=later))
        async with started(peer.url) as handler:
            with pytest.raises(Retry) as asked:
                await handler.handle(batch_of(b"1"))
            with pytest.raises(Retry):
                await handler.handle(batch_of(b"2"))  # all calls wait

        assert asked.value.delay_level == 6, later  # 2 min, the first that is not shorter
        assert peer.contents == [b"1"], later


@pytest.mark.parametrize("per_call", ["message", "batch"])
async def test_an_orderly_queue_is_suspended_for_retry_after(peer: HttpPeer, per_call: str) -> None:
    """Orderly groups have no delay levels: they would retry after a second and count each attempt."""
    peer.answers.append(status(429, Retry_After="100"))
    batch = testing.make_batch(*batch_of(b"1", b"2"), consume_mode="orderly")
    async with started(peer.url, per_call=per_call, format="json") as handler:
        with pytest.raises(Suspend) as suspended:
            await handler.handle(batch)

    assert suspended.value.seconds is not None
    assert 90 < suspended.value.seconds <= 100
    assert len(peer.contents) == 1
    assert decided(batch) == ({1: "again"} if per_call == "message" else {})


@pytest.mark.parametrize("refusal", [400, 413, 431])
async def test_only_the_bad_message_of_a_refused_batch_is_a_dead_letter(peer: HttpPeer, refusal: int) -> None:
    """The server refuses calls with the third message: first all, then the second half, then the third alone."""
    peer.answers.extend([status(refusal), status(200), status(refusal), status(refusal), status(503)])
    batch = batch_of(b"1", b"2", b"3", b"4")
    async with started(peer.url, per_call="batch", format="json", retry_for="0s") as handler:
        with pytest.raises(CounterpartUnavailableError):
            await handler.handle(batch)
        assert decided(batch) == {0: "ack", 1: "ack", 2: "dead_letter"}
        await handler.handle(rest := batch.undecided())
    assert (len(rest), [len(json.loads(content)) for content in peer.contents]) == (1, [4, 2, 2, 1, 1, 1])


async def test_parallel_calls_are_limited_to_max_connections(peer: HttpPeer) -> None:
    peer.answers.extend([Answer(b"", HANG)] * 2)
    async with started(peer.url, max_connections=2, timeout="10s") as handler:
        tasks = [asyncio.create_task(handler.handle(batch_of(b"%d" % number))) for number in range(5)]
        await eventually(lambda: len(peer.requests) == 2, "two calls are in flight")
        assert peer.connections == 2
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await handler.handle(batch_of(b"after"))

    assert peer.contents[-1] == b"after"


async def test_tls_with_a_client_certificate() -> None:
    files = {"ca_file": str(CA), "cert_file": str(certificate(CLIENT)), "key_file": str(key(CLIENT))}
    async with http_peer(server_context(wants_client=True)) as peer:
        async with started(peer.url, tls=files) as handler:
            await handler.handle(batch_of(b"1"))
        async with started(peer.url, retry_for="0s") as handler:
            with pytest.raises(httpx.TransportError, match="CERTIFICATE_VERIFY_FAILED"):
                await handler.handle(batch_of(b"2"))

        assert peer.contents == [b"1"]


async def test_a_message_waits_while_the_client_certificate_is_refused() -> None:
    """With TLS 1.3 the refusal arrives when the client reads the response."""
    expired = {"cert_file": str(certificate(CLIENT_EXPIRED)), "key_file": str(key(CLIENT_EXPIRED))}
    listener, has_failed, context = (
        socket.create_server(("127.0.0.1", 0)),
        threading.Event(),
        server_context(wants_client=True),
    )

    def refuse() -> None:
        connection, _ = listener.accept()
        with context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False) as server:
            with pytest.raises(ssl.SSLError):
                server.do_handshake()
            has_failed.wait()  # because the client may lose the refusal if the connection is closed

    with listener:
        refusing = asyncio.create_task(asyncio.to_thread(refuse))
        url, tls = f"https://localhost:{listener.getsockname()[1]}/", {"ca_file": str(CA), **expired}
        async with started(url, tls=tls, retry_for="0s") as handler:
            with pytest.raises(ssl.SSLError, match="CERTIFICATE_EXPIRED") as raised:
                await handler.handle(batch_of(b"1"))
        has_failed.set()
        await refusing
    assert meant(raised.value) == "again"
