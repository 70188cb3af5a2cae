"""Commands on clusters with access control, or that accept only TLS."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.acl import Credentials
from tests.certificates import CA, server_context
from tests.cli.command import Ended
from tests.cli.in_process import rmqd
from tests.client.peer import Peer, Reply, route_of, routes, stored

ROUTE, SEND = RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.SEND_MESSAGE_V2
KEYS = {"RMQD_ACCESS_KEY": "the-user", "RMQD_SECRET_KEY": "the-secret", "RMQD_SECURITY_TOKEN": "the-token"}
WHO = Credentials(*KEYS.values())


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    """A name server and broker in one, which has the topic orders."""
    async with serving(None) as peer:
        yield peer


@contextlib.asynccontextmanager
async def serving(tls: ssl.SSLContext | None) -> AsyncIterator[Peer]:
    """A name server and broker in one, with TLS if `tls` is given."""
    async with Peer(tls) as peer:
        peer.on(ROUTE, routes({"orders": route_of({"broker-a": peer.address})}))
        peer.on(SEND, stored())
        yield peer


async def run(*arguments: str | Path) -> Ended:
    """Run the command while its peer answers in this process."""
    return await asyncio.to_thread(rmqd, *arguments)


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Access keys in the environment."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)


def is_signed(peer: Peer, code: RequestCode) -> bool:
    """Whether the last request with this code has the right signature."""
    request = peer.got(code)[-1]
    unsigned = {name: value for name, value in request.ext_fields.items() if name not in WHO.signed({}, b"")}
    return WHO.signed(unsigned, request.body) == request.ext_fields


@pytest.mark.usefixtures("keys")
async def test_without_a_configuration_the_keys_come_from_the_environment(peer: Peer) -> None:
    ended = await run("send", "orders", "paid", "-n", peer.address)
    assert ended.code == 0, ended.err
    assert is_signed(peer, ROUTE)
    assert is_signed(peer, SEND)


async def test_commands_use_the_keys_of_the_configuration(peer: Peer, tmp_path: Path) -> None:
    """They do so even if the command names another name server."""
    (tmp_path / "secret").write_text("the-secret\n")
    config = tmp_path / "rmqd.yaml"
    config.write_text(
        "nameserver: nowhere:1\n"
        f"client: {{access_key: the-user, secret_key: '${{file:{tmp_path}/secret}}', security_token: the-token}}\n"
        "groups: {g: {subscriptions: {orders: '*'}, handler: {plugin: log}}}\n"
    )
    ended = await run("send", "orders", "paid", "-n", peer.address, "-c", config)
    assert ended.code == 0, ended.err
    assert is_signed(peer, SEND)


async def test_a_key_without_its_secret_is_an_error(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RMQD_ACCESS_KEY", "the-user")
    ended = await run("send", "orders", "x", "-n", peer.address)
    assert (ended.code, ended.err) == (
        78,
        "rmqd: RMQD_ACCESS_KEY and RMQD_SECRET_KEY belong together; expected both or neither\n",
    )


@pytest.mark.usefixtures("keys")
@pytest.mark.parametrize("remark", ["User:the-user is not found.", "check signature failed."])
async def test_a_refusal_shows_the_reason_but_not_the_keys(peer: Peer, remark: str) -> None:
    peer.on(SEND, Reply(ResponseCode.NO_PERMISSION, remark))
    ended = await run("send", "orders", "x", "-n", peer.address)
    assert ended.code == 1
    assert f"{peer.address} refuses access" in ended.err
    assert ended.err.splitlines()[1:] == ["rmqd: 0 of 1 messages were sent"]
    assert not any(secret in ended.out + ended.err for secret in KEYS.values())


async def test_tls_can_be_enabled_without_a_configuration() -> None:
    async with serving(server_context()) as peer:
        plain = await run("send", "orders", "x", "-n", peer.address)
        assert plain.code == 69
        assert "the server accepts only TLS; set client.tls.enabled: true" in plain.err
        tls = ("--set", "client.tls.enabled=true", "--set", f"client.tls.ca_file={CA}")
        ended = await run("send", "orders", "x", "-n", peer.address, *tls)
        assert ended.code == 0, ended.err
        wrong = await run("send", "orders", "x", "-n", peer.address, "--set", "client.tls.enable=true")
        assert wrong.code == 78
        assert wrong.err == "--set client.tls.enable: client.tls.enable: unknown key; did you mean enabled?\n"
