"""TLS connections: trust, error texts, and settings that a running client reloads."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rmqd.client.client_options import ClientOptions, TlsOptions
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.client.remoting.security import file_problems
from rmqd.codes import RequestCode
from rmqd.errors import ConnectionRenewedError, TlsError
from tests.certificates import (
    CA,
    CLIENT,
    CLIENT_EXPIRED,
    CLIENT_OF_OTHER_CA,
    ENCRYPTED_KEY,
    OTHER_CA,
    SERVER,
    SERVER_ELSEWHERE,
    SERVER_EXPIRED,
    certificate,
    key,
    server_context,
)
from tests.client.peer import Peer, Reply
from tests.client.raw_server import RawServer
from tests.waiting import eventually

ASK = RequestCode.GET_ROUTEINFO_BY_TOPIC
TLS = TlsOptions(enabled=True, ca_file=str(CA))


def shown(name: str) -> TlsOptions:
    """TLS options with this client certificate."""
    return replace(TLS, cert_file=str(certificate(name)), key_file=str(key(name)))


@contextlib.asynccontextmanager
async def client_with(tls: TlsOptions) -> AsyncIterator[RemotingClient]:
    """A client with these TLS settings."""
    client = RemotingClient(ClientOptions(tls=tls))
    try:
        yield client
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def server_with(context: ssl.SSLContext | None) -> AsyncIterator[Peer]:
    """A server that accepts only connections of this context; None means without TLS."""
    async with Peer(context) as peer:
        yield peer


async def why_not(tls: TlsOptions, context: ssl.SSLContext | None) -> str:
    """The reason of the error of a client with these settings at a server with that context."""
    async with server_with(context) as peer, client_with(tls) as client:
        with pytest.raises(TlsError) as caught:
            await client.invoke(peer.address, ASK, {})
        assert caught.value.address == peer.address
        with pytest.raises(TlsError):  # without a new attempt, which would only load the server
            await client.invoke(peer.address, ASK, {})
        return caught.value.reason


async def test_requests_and_answers_go_through() -> None:
    async with server_with(server_context()) as peer, client_with(TLS) as client:
        peer.on(ASK, Reply(remark="encrypted", body=b"x" * 300_000))
        answer = await client.invoke(peer.address, ASK, {}, b"y" * 300_000)
        assert (answer.remark, len(answer.body), len(peer.got(ASK)[0].body)) == ("encrypted", 300_000, 300_000)


async def test_a_server_that_requires_a_client_certificate_gets_one() -> None:
    wants_one = server_context(wants_client=True)
    async with server_with(wants_one) as peer, client_with(shown(CLIENT)) as client:
        await client.invoke(peer.address, ASK, {})


@pytest.mark.parametrize(
    ("server", "tls", "reason"),
    [
        (SERVER_EXPIRED, TLS, "the server's certificate has expired"),
        (SERVER_ELSEWHERE, TLS, r"the server's certificate is not for 127\.0\.0\.1; client\.tls\.server_name can"),
        (SERVER, replace(TLS, server_name="mq.example"), "is not for mq.example"),
        (
            SERVER,
            replace(TLS, ca_file=str(OTHER_CA)),
            "no trusted authority signed the server's certificate .* client.tls.ca_file",
        ),
        (SERVER, replace(TLS, ca_file=""), "no trusted authority signed the server's certificate"),
    ],
)
async def test_an_untrusted_server_is_refused_with_the_reason(server: str, tls: TlsOptions, reason: str) -> None:
    assert re.search(reason, await why_not(tls, server_context(server)))


async def test_a_certificate_may_have_another_name_or_be_unverified() -> None:
    for tls in (replace(TLS, server_name="broker.example"), TlsOptions(enabled=True, verify=False)):
        async with server_with(server_context(SERVER_ELSEWHERE)) as peer, client_with(tls) as client:
            await client.invoke(peer.address, ASK, {})


async def test_a_server_without_tls_is_reported() -> None:
    """It may answer in plain text, or only close the connection as RocketMQ does."""
    assert "the server answers without TLS" in await why_not(TLS, None)

    async def answer_anything(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()

    async with RawServer(answer_anything) as server, client_with(TLS) as client:
        with pytest.raises(TlsError, match="the server answers without TLS"):
            await client.invoke(server.address, ASK, {})


async def test_a_server_that_requires_tls_is_reported() -> None:
    assert "the server accepts only TLS; set client.tls.enabled: true" in await why_not(TlsOptions(), server_context())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize(
    ("tls", "reason"),
    [
        (TLS, "the server requires a client certificate; set client.tls.cert_file and key_file"),
        (shown(CLIENT_EXPIRED), "does not accept the certificate in client.tls.cert_file, which has expired"),
        (shown(CLIENT_OF_OTHER_CA), "certificate in client.tls.cert_file, whose signing authority it does not know"),
    ],
)
async def test_a_client_certificate_that_is_not_accepted_is_reported(
    tls: TlsOptions, reason: str, version: ssl.TLSVersion
) -> None:
    """With TLS 1.3 the server refuses it after the handshake, so the first request fails."""
    context = server_context(wants_client=True)
    context.maximum_version = version
    with alerting_server(context) as address:
        async with client_with(tls) as client:
            with pytest.raises(TlsError) as caught:
                await client.invoke(address, ASK, {})
    if tls is TLS and version is ssl.TLSVersion.TLSv1_2:
        reason = "the server ends the handshake; it may require a certificate"  # TLS 1.2 has no specific alert for it
    assert reason in caught.value.reason


@contextlib.contextmanager
def alerting_server(context: ssl.SSLContext) -> Iterator[str]:
    """A server that ends a handshake by an alert, as OpenSSL and Java do, and asyncio does not."""

    def serve() -> None:
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:
                return
            with accepted, contextlib.suppress(OSError), context.wrap_socket(accepted, server_side=True) as link:
                link.read(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
        thread.join()


async def test_changed_tls_settings_renew_connections() -> None:
    """A waiting request fails with ConnectionRenewedError and must be sent again."""
    async with server_with(server_context()) as peer, client_with(replace(TLS, verify=False)) as client:
        peer.on(ASK, None)
        connection = await client.connection(peer.address)
        waiting = asyncio.create_task(client.invoke(peer.address, ASK, {}, timeout_seconds=30))
        await peer.received(ASK)
        client.secure(ClientOptions(tls=TLS))
        with pytest.raises(ConnectionRenewedError):
            await waiting
        await eventually(lambda: not connection.is_open, "the old connection is closed")
        peer.on(ASK, Reply())
        await client.invoke(peer.address, ASK, {})
        assert peer.connections == 2


async def test_a_replaced_ca_file_is_used_by_new_connections(tmp_path: Path) -> None:
    """Existing connections stay open, because their certificates have been checked."""
    ca = tmp_path / "ca.pem"
    ca.write_bytes(OTHER_CA.read_bytes())
    options = ClientOptions(tls=replace(TLS, ca_file=str(ca)))
    async with server_with(server_context()) as peer, client_with(options.tls) as client:
        with pytest.raises(TlsError):
            await client.invoke(peer.address, ASK, {})
        ca.write_bytes(CA.read_bytes())
        client.secure(options)
        await client.invoke(peer.address, ASK, {})
        client.secure(options)
        await client.invoke(peer.address, ASK, {})
        assert peer.connections == 1


@pytest.mark.parametrize(
    ("tls", "expected"),
    [
        (TLS, []),
        (replace(TLS, cert_file=str(certificate(CLIENT)), key_file=str(ENCRYPTED_KEY), key_password="in-a-test"), []),
        (
            replace(TLS, ca_file="/no/such"),
            ["client.tls.ca_file: the file /no/such cannot be read: No such file or directory"],
        ),
        (
            replace(TLS, ca_file=__file__),
            [f"client.tls.ca_file: the file {__file__} does not hold certificates in PEM"],
        ),
        (
            replace(TLS, cert_file=str(certificate(CLIENT)), key_file=str(key(SERVER))),
            [
                f"client.tls.key_file: the key in {key(SERVER)} does not belong to the certificate in "
                f"{certificate(CLIENT)}"
            ],
        ),
        (
            replace(TLS, cert_file=str(certificate(CLIENT)), key_file=str(ENCRYPTED_KEY)),
            [f"client.tls.key_file: the key in {ENCRYPTED_KEY} is encrypted; set client.tls.key_password"],
        ),
        (
            replace(TLS, cert_file=str(certificate(CLIENT)), key_file=str(ENCRYPTED_KEY), key_password="other"),
            [f"client.tls.key_file: the key in {ENCRYPTED_KEY} cannot be decrypted with client.tls.key_password"],
        ),
        (
            replace(TLS, ca_file="/no/such", cert_file=__file__, key_file=str(key(CLIENT))),
            [
                "client.tls.ca_file: the file /no/such cannot be read: No such file or directory",
                f"client.tls.cert_file: the file {__file__} does not hold a certificate in PEM",
            ],
        ),
        (
            replace(TLS, cert_file=str(certificate(CLIENT)), key_file=str(CA)),
            [f"client.tls.key_file: the file {CA} does not hold a key in PEM"],
        ),
    ],
)
def test_unusable_files_are_reported_with_their_config_keys(tls: TlsOptions, expected: list[str]) -> None:
    assert [str(problem) for problem in file_problems(tls)] == expected
