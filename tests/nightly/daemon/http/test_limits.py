"""Limits of the HTTP endpoint: large bodies, headers that do not arrive, held connections."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from rmqd.daemon.http import http_server
from tests.daemon.http.test_http import Served, served

__all__ = ["served"]


async def raw(address: str, data: bytes) -> bytes:
    """Send these bytes, and return the response until the connection ends."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        async with asyncio.timeout(60):  # a daemon with 56,000 waiting requests is busy for seconds
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


LENGTH = b"Content-Length: 70000\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n" + b"%x\r\n" % 66_000 + b"x" * 66_000


@pytest.mark.parametrize("rest", [LENGTH, CHUNKED])
async def test_a_large_body_is_refused(served: Served, rest: bytes) -> None:
    """It is refused by its announced length, or once the limit is exceeded."""
    answer = await raw(served.address, b"POST /api/v1/reload HTTP/1.1\r\nHost: localhost\r\n" + rest)
    assert answer.startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("sent", [b"", b"GET /livez HTTP/1.1\r\nHost: x\r\n"])
async def test_a_header_that_does_not_arrive_ends_the_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """The time is 10 s, shortened here."""
    monkeypatch.setattr(http_server, "HEADER_SECONDS", 0.05)
    assert await raw(served.address, sent) == b""


@contextlib.asynccontextmanager
async def connections(address: str, count: int, sent: bytes = b"") -> AsyncIterator[list[asyncio.StreamReader]]:
    """Open connections that send these bytes. Only the test reads from them."""
    host, port = address.split(":")
    opened = []
    for _ in range(count):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
        reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
        writer.write(sent)
        opened.append((reader, writer))
    try:
        yield [reader for reader, _ in opened]
    finally:
        for _, writer in opened:
            writer.transport.abort()
        await asyncio.gather(*(writer.wait_closed() for _, writer in opened), return_exceptions=True)


PROBE = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
UNREAD = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n" * 400
HALF_BODY = b"POST /api/v1/reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nabc"


@pytest.mark.parametrize("sent", [b"", b"GET /livez HTTP/1.1\r\nHo", HALF_BODY, UNREAD])
async def test_a_probe_is_answered_while_others_hold_every_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """The other clients send nothing or half a request, or read no responses. Their connections are closed."""
    monkeypatch.setattr(http_server, "MAX_CONNECTIONS", 3)
    async with connections(served.address, 3, sent):
        for _ in range(5):
            assert (await raw(served.address, PROBE)).startswith(b"HTTP/1.1 200")
