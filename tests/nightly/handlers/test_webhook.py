"""`webhook`: further formats, refusals and connections."""

from __future__ import annotations

import base64
import hashlib
import hmac
from pathlib import Path

import pytest

from rmqd import DeadLetter, testing
from rmqd_handlers.away import AwayError
from rmqd_handlers.webhook.connections import retry_after_seconds
from tests.handlers.messages import make_batch, make_message
from tests.handlers.test_webhook import batch_of, decided, peer, started
from tests.servers.http_peer import HANG, Answer, HttpPeer, status

__all__ = ["peer"]


async def test_cloud_events_of_a_batch_leave_out_what_is_not_as_the_content_type_says(peer: HttpPeer) -> None:
    batch = batch_of(b"1", b"no JSON", b"3")
    async with started(peer.url, format="cloudevents", per_call="batch") as handler:
        await handler.handle(batch)

    [request] = peer.requests
    assert request.headers["content-type"] == "application/cloudevents-batch+json"
    assert [event["data"] for event in request.document] == [1, 3]
    assert decided(batch) == {1: "dead_letter"}


async def test_what_a_producer_wrote_breaks_no_header_and_holds_up_nothing(peer: HttpPeer) -> None:
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


async def test_a_call_is_signed_over_its_content_alone(peer: HttpPeer) -> None:
    async with started(peer.url, signing_secret="secret", signing="sha256") as handler:
        await handler.handle(batch_of(b"body"))

    expected = hmac.new(b"secret", b"body", hashlib.sha256).hexdigest()
    assert peer.requests[0].headers["x-hub-signature-256"] == f"sha256={expected}"


async def test_a_message_that_fails_does_not_take_its_batch_along(peer: HttpPeer) -> None:
    peer.answers.extend([status(200), status(500), status(200)])
    batch = batch_of(b"1", b"2", b"3")
    async with started(peer.url, retry_for="0s") as handler:
        with pytest.raises(AwayError, match="500"):
            await handler.handle(batch)

    assert peer.contents == [b"1", b"2", b"3"]
    assert decided(batch) == {0: "ack", 2: "ack"}


def test_no_server_is_left_alone_for_more_than_the_longest_delay_level() -> None:
    for header in ("999999999", "Fri, 31 Dec 2100 23:59:59 GMT"):
        assert retry_after_seconds(header) == 2 * 60 * 60, header


async def test_a_batch_that_is_refused_is_dead_letters(peer: HttpPeer) -> None:
    peer.answers.append(status(422, "wrong"))
    async with started(peer.url, per_call="batch", format="json") as handler:
        with pytest.raises(DeadLetter, match="422 Said: wrong"):
            await handler.handle(batch_of(b"1", b"2"))


async def test_an_answer_without_an_end_is_not_read_to_the_end(peer: HttpPeer) -> None:
    peer.answers.append(Answer(b"HTTP/1.1 400 No\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 200_000, HANG))
    async with started(peer.url, timeout="30s") as handler:
        batch = batch_of(b"1")
        await handler.handle(batch)

    assert len(batch.decisions()[0].reason) < 1000


async def test_a_certificate_that_is_missing_fails_the_start(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        async with started("https://localhost:1/", tls={"ca_file": str(tmp_path / "missing.pem")}):
            pass


async def test_a_proxy_gets_the_call(peer: HttpPeer, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = f"http://user:pass@localhost:{peer.port}"
    monkeypatch.setenv("HTTP_PROXY", "http://localhost:1")  # what the options say counts
    async with started("http://shop.example.org/hook", proxy=proxy) as handler:
        await handler.handle(batch_of(b"1"))

    [request] = peer.requests
    assert request.line == "POST http://shop.example.org/hook HTTP/1.1"
    assert request.headers["proxy-authorization"] == f"Basic {base64.b64encode(b'user:pass').decode()}"


async def test_odd_but_right_urls_and_headers_are_taken(peer: HttpPeer) -> None:
    """What is refused is what no call could carry: the rest must go over."""
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
