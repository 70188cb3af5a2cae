"""Encrypted connections: trusted certificates, reported errors, and changed settings of a running client."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from rmqd.client.client_options import ClientOptions, TlsOptions
from rmqd.client.remoting.security import client_context, explain_tls_error, file_problems
from rmqd.client.routing.name_server_client import NameServers
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import RemotingError, RmqdError, TlsError, TlsFileError
from rmqd.wire.command import encode_request, encode_response
from tests.certificates import (
    CLIENT,
    OTHER_CA,
    SERVER_ELSEWHERE,
    SERVER_EXPIRED,
    certificate,
    key,
    server_context,
)
from tests.client.raw_server import RawServer, read_command
from tests.client.remoting.test_tls import ASK, TLS, client_with, server_with
from tests.waiting import eventually

NOTICE = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED


async def test_a_closed_client_has_no_open_connection() -> None:
    """Otherwise sockets would stay open if the event loop ends next."""
    async with server_with(server_context()) as peer, client_with(TLS) as client:
        connection = await client.connection(peer.address)
        await client.close()
        assert not connection.is_open


async def test_all_commands_before_the_peer_closes_are_received() -> None:
    """Over TLS the end of the stream arrives together with the last commands."""
    came = list[int]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        command = await read_command(reader)
        for number in range(1000):
            writer.write(encode_request(NOTICE, number, {}, oneway=True))
        writer.write(encode_response(command, ResponseCode.SUCCESS))
        writer.close()
        await writer.wait_closed()

    async with RawServer(serve, server_context()) as server, client_with(TLS) as client:
        client.peer_requests.notice_handlers[NOTICE] = lambda command, address: came.append(command.opaque)
        assert (await client.invoke(server.address, ASK, {})).code == ResponseCode.SUCCESS
        await eventually(lambda: client.connected(server.address) is None, "the connection is closed")
    assert came == list(range(1000))


async def test_unverified_connections_are_logged() -> None:
    with capture_logs() as logs:
        async with server_with(server_context()) as peer, client_with(replace(TLS, verify=False)) as client:
            await client.invoke(peer.address, ASK, {})
    assert [entry["log_level"] for entry in logs if entry["event"] == "tls.unverified"] == ["warning"]


async def test_versions_before_tls_1_2_are_refused() -> None:
    old = server_context()
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    async with server_with(old) as peer, client_with(TLS) as client:
        with pytest.raises(RemotingError):
            await client.invoke(peer.address, ASK, {})
    assert client_context(TLS).minimum_version == ssl.TLSVersion.TLSv1_2


async def test_a_server_that_answers_with_a_tls_alert_is_reported_as_tls_only() -> None:
    """A gateway in front of the server may send an alert for unencrypted bytes."""

    async def alert(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(bytes((0x15, 3, 3, 0, 2, 2, 10)))
        await writer.drain()
        await asyncio.Event().wait()

    async with RawServer(alert) as server, client_with(TlsOptions()) as client:
        with pytest.raises(RemotingError, match="the server accepts only TLS"):
            await client.invoke(server.address, ASK, {})


async def test_the_certificate_is_checked_against_the_configured_host_name() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async with server_with(server_context(SERVER_ELSEWHERE)) as peer, client_with(TLS) as client:
        names = NameServers(client, [f"broker.example:{peer.port}"], resolve=resolve)
        await names.look_up()
        assert names.addresses == (peer.address,)
        await client.invoke(peer.address, ASK, {})


def test_the_check_of_files_does_not_load_the_systems_authorities(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading them takes 50 ms for each client of a configuration."""
    monkeypatch.delattr(ssl.SSLContext, "load_default_certs")
    assert file_problems(TlsOptions(enabled=True)) == []
    mine = TlsOptions(enabled=True, cert_file=str(certificate(CLIENT)), key_file=str(key(CLIENT)))
    assert file_problems(mine) == []
    assert [problem.key for problem in file_problems(replace(mine, key_file="/no/such"))] == ["key_file"]


async def test_a_file_that_becomes_unreadable_only_fails_connections() -> None:
    async with server_with(server_context()) as peer, client_with(replace(TLS, ca_file="/no/such")) as client:
        with pytest.raises(TlsError, match=r"client\.tls\.ca_file: the file /no/such cannot be read"):
            await client.invoke(peer.address, ASK, {})
    with pytest.raises(TlsFileError):
        client_context(replace(TLS, ca_file="/no/such"))


async def test_a_tls_failure_is_logged_once_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one line for all requests."""
    now = 0.0
    with capture_logs() as logs:
        async with server_with(server_context(SERVER_EXPIRED)) as peer, client_with(TLS) as client:
            refusals = client.security.refusals
            monkeypatch.setattr(refusals, "_now", lambda: now)
            for now in (0.0, 1.0, 59.0, 60.0, 61.0, 120.0, 121.0):  # noqa: B007 read by the clock
                client.connector.forget_failures()
                with pytest.raises(RmqdError) as caught:
                    await client.invoke(peer.address, ASK, {})
                assert caught.value.is_reported
            assert refusals.reason_for_group(["any"]) == f"{peer.address}: the server's certificate has expired"
    told = [entry for entry in logs if entry["event"] == "access.refused"]
    assert [entry["reason"] for entry in told] == [f"{peer.address}: the server's certificate has expired"] * 3


async def test_settings_that_change_during_a_connect_apply_to_the_connection() -> None:
    """Neither a connection with the old settings nor its failure counts."""
    async with server_with(server_context()) as peer, client_with(replace(TLS, ca_file=str(OTHER_CA))) as client:
        asking = asyncio.create_task(client.invoke(peer.address, ASK, {}))
        await asyncio.sleep(0)
        client.secure(ClientOptions(tls=TLS))
        with capture_logs() as logs:
            await asking
        assert client.security.refusals.reason_for_group(["any"]) is None
        assert logs == []


def test_a_missing_client_certificate_is_not_reported_as_a_bad_one() -> None:
    """Servers with an old Java send the alert "bad certificate" for a missing one."""
    alert = ssl.SSLError(1, "[SSL: SSLV3_ALERT_BAD_CERTIFICATE] sslv3 alert bad certificate (_ssl.c:2580)")
    alert.reason = "SSLV3_ALERT_BAD_CERTIFICATE"
    refused = explain_tls_error(alert, "h", shows_one=True)
    assert refused == "the server does not accept the certificate in client.tls.cert_file"
    assert explain_tls_error(alert, "h", shows_one=False) == (
        "the server requires a client certificate; set client.tls.cert_file and key_file"
    )
