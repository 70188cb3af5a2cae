"""Reads the list of name servers from an address server, given by its URL."""

from __future__ import annotations

import contextlib
import socket
from base64 import b64encode
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rmqd.own_threads import in_own_thread

if TYPE_CHECKING:
    from urllib.request import Request

LOOKUP_TIMEOUT_SECONDS: Final = 3.0  # Java: TopAddressing's readTimeoutMillis
MAX_ADDRESS_LIST_BYTES: Final = 64 * 1024


async def fetch_text(url: str) -> str:
    """Read a URL. Raises OSError or ValueError. A cancellation closes the connections."""
    if not url.startswith(("http://", "https://")):
        raise ValueError("an address server's URL must begin with http:// or https://")
    sockets: list[socket.socket] = []
    try:
        return await in_own_thread(partial(_read, url, sockets))
    finally:
        # The sockets' timeout applies to each read: a server that sends single bytes could block the thread for days.
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def _read(url: str, sockets: list[socket.socket]) -> str:
    import http.client  # these imports take 7 ms, and only an address server needs them
    import urllib.error
    import urllib.request

    def noting(kind: type[http.client.HTTPConnection]) -> Any:
        def make(host: str, **options: Any) -> http.client.HTTPConnection:
            connection = kind(host, **options)
            connect = connection.connect

            def connect_and_note() -> None:
                connect()
                sockets.append(connection.sock)

            connection.connect = connect_and_note  # type: ignore[method-assign]
            return connection

        return make

    class Http(urllib.request.HTTPHandler):
        def http_open(self, request: urllib.request.Request) -> Any:
            return self.do_open(noting(http.client.HTTPConnection), request)

    class Https(urllib.request.HTTPSHandler):
        def https_open(self, request: urllib.request.Request) -> Any:
            return self.do_open(noting(http.client.HTTPSConnection), request)

    try:
        with urllib.request.build_opener(Http, Https).open(_request(url), timeout=LOOKUP_TIMEOUT_SECONDS) as reply:
            body: bytes = reply.read(MAX_ADDRESS_LIST_BYTES)
    except urllib.error.HTTPError as error:
        error.close()  # an HTTPError is also the response, with its connection
        raise
    except http.client.HTTPException as error:
        raise OSError(f"its response is not HTTP: {error!r}") from error
    return body.decode()


def _request(url: str) -> Request:
    """Return a request with the URL's user and password as basic authentication, but not for redirects."""
    from urllib.parse import unquote, urlsplit
    from urllib.request import Request

    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    request = Request(parts._replace(netloc=host).geturl())
    if at:
        request.add_unredirected_header("Authorization", f"Basic {b64encode(unquote(user).encode()).decode()}")
    return request
