"""NameServers: fail-over, the preferred name server, and changing addresses."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.client.routing.name_server_client import NameServers, fetch_text
from rmqd.errors import NameServerError
from tests.client.peer import Peer
from tests.client.routing.test_name_server import ROUTE, asked, peers
from tests.client.running import running
from tests.waiting import eventually

__all__ = ["peers"]


async def test_all_addresses_of_a_host_name_are_tried(remoting: RemotingClient, peers: list[Peer]) -> None:
    """A dead address is skipped."""

    async def resolve(host: str, port: int) -> list[str]:
        assert host == "nameservers"
        return ["127.0.0.9", "127.0.0.1"]

    servers = NameServers(remoting, [f"nameservers:{peers[0].port}"], resolve=resolve)
    assert await servers.get_route("T") == ROUTE
    assert servers.addresses[0] == peers[0].address


async def test_a_lookup_replaces_the_name_server(remoting: RemotingClient, peers: list[Peer]) -> None:
    """The old server gets no more requests although it still responds, and its connection is closed."""
    where = [peers[0].port]

    async def fetch(url: str) -> str:
        return f"127.0.0.1:{where[0]}"

    servers = NameServers(remoting, [], url="http://addresses/ns", fetch=fetch)
    assert await servers.get_route("T") == ROUTE
    where[0] = peers[1].port
    await servers.look_up()
    assert await servers.get_route("T") == ROUTE
    assert asked(peers) == [1, 1, 0]
    await eventually(lambda: remoting.connected(peers[0].address) is None, "the old connection is closed")


async def test_clients_without_members_follow_a_changed_host_name(
    remoting: RemotingClient, peers: list[Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Examples are a sink or a source on Spark. The old machine still responds."""
    monkeypatch.setattr("rmqd.client.routing.name_server_client.RESOLVE_INTERVAL_SECONDS", 0.0)
    host = ["127.0.0.1"]

    async def resolve(_host: str, _port: int) -> list[str]:
        return list(host)

    servers = NameServers(remoting, [f"nameserver:{peers[0].port}"], resolve=resolve)
    assert await servers.get_route("T") == ROUTE
    host[0] = "127.0.0.9"
    with pytest.raises(NameServerError):
        await servers.get_route("T")
    assert servers.addresses == (f"127.0.0.9:{peers[0].port}",)


async def test_members_follow_a_changed_host_name(
    remoting: RemotingClient, peers: list[Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is resolved at intervals, although the old machine still responds."""
    monkeypatch.setattr("rmqd.client.routing.name_server_client.RESOLVE_INTERVAL_SECONDS", 0.01)
    host = ["127.0.0.1"]

    async def resolve(_host: str, _port: int) -> list[str]:
        return list(host)

    servers = NameServers(remoting, [f"nameserver:{peers[0].port}"], resolve=resolve)
    assert await servers.get_route("T") == ROUTE
    host[0] = "127.0.0.9"
    async with running(servers.run()):
        await eventually(lambda: servers.addresses == (f"127.0.0.9:{peers[0].port}",), "the new address is known")


async def test_total_failure_reads_the_address_server_again(remoting: RemotingClient, peers: list[Peer]) -> None:
    """If no known name server responds, `run` reads it at once."""
    listed = ["127.0.0.1:1"]

    async def fetch(url: str) -> str:
        return listed[0]

    servers = NameServers(remoting, [], url="http://addresses/ns", fetch=fetch)
    async with running(servers.run()):
        with pytest.raises(NameServerError):
            await servers.get_route("T")
        listed[0] = peers[0].address
        with pytest.raises(NameServerError):
            await servers.get_route("T")
        await eventually(lambda: servers.addresses == (peers[0].address,), "the new address is known")
        assert await servers.get_route("T") == ROUTE


class AddressServer(http.server.BaseHTTPRequestHandler):
    """A server that responds with two addresses, and records the paths."""

    paths: list[str] = []  # noqa: RUF012 - one server, one test at a time

    def do_GET(self) -> None:
        self.paths.append(self.path)
        self.send_response(200 if self.path.startswith("/rocketmq/nsaddr") else 404)
        self.end_headers()
        self.wfile.write(b"10.0.0.1:9876;10.0.0.2:9876\n")

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log nothing."""


@pytest.fixture
def address_server() -> Iterator[str]:
    AddressServer.paths.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), AddressServer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


async def test_the_address_server_is_read(remoting: RemotingClient, address_server: str) -> None:
    """Its text lists the name servers. The unit name is part of the URL, as in Java."""
    servers = NameServers(remoting, [], url=f"{address_server}/rocketmq/nsaddr", unit_name="east")
    await servers.look_up()
    assert sorted(servers.addresses) == ["10.0.0.1:9876", "10.0.0.2:9876"]
    assert AddressServer.paths == ["/rocketmq/nsaddr-east?nofix=1"]


async def test_addresses_override_the_url(remoting: RemotingClient, address_server: str, peers: list[Peer]) -> None:
    """As in the Java client, the URL is used only without addresses."""
    servers = NameServers(remoting, [peers[0].address], url=f"{address_server}/rocketmq/nsaddr")
    await servers.look_up()
    assert servers.addresses == (peers[0].address,)
    assert AddressServer.paths == []


async def test_an_address_server_must_use_http_and_respond_without_error(address_server: str) -> None:
    """Other schemes could read local files."""
    with pytest.raises(ValueError, match="http"):
        await fetch_text("file:///etc/hostname")
    with pytest.raises(OSError, match="404"):
        await fetch_text(f"{address_server}/elsewhere")


async def test_a_password_in_an_address_servers_url_is_sent_and_not_shown(remoting: RemotingClient) -> None:
    """It is sent as basic authentication. Logs and errors hide it."""
    heard: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.0 403 No\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        servers = NameServers(remoting, (), url=f"http://user:s3cret@{address}/ns")
        with capture_logs() as lines, pytest.raises(NameServerError) as caught:
            await servers.get_route("orders")
    assert "s3cret" not in f"{caught.value} {lines}"
    assert "user:***@" in str(caught.value)
    assert b"Authorization: Basic dXNlcjpzM2NyZXQ=" in heard[0]
