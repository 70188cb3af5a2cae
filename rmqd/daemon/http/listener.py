"""The listening socket of the HTTP endpoint. It is opened first, so that a port in use is reported at once.

This module does not import the HTTP server: connections wait in the socket's queue until it runs.
"""

from __future__ import annotations

import errno
import resource
import socket
from ipaddress import ip_address

from rmqd.errors import RmqdError

MAX_CONNECTIONS = 256
MIN_CONNECTIONS = 4


class ListenError(RmqdError):
    """The daemon cannot listen on the configured address."""


def share_of_descriptors() -> int:
    """Return a quarter of the descriptors that this process may open. The rest is for brokers and handlers."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(MIN_CONNECTIONS, soft // 4)


def split_listen_address(listen: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`."""
    host, _, port = listen.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def listen_on(listen: str) -> socket.socket:
    """Open a non-blocking socket that listens on `host:port`. Raises ListenError."""
    host, port = split_listen_address(listen)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            # twice the limit: before the server is imported, connections are not accepted, and a full queue delays a
            # probe by a second
            sock.listen(2 * min(MAX_CONNECTIONS, share_of_descriptors()))
            sock.setblocking(False)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        hint = "; stop the other process, or set another http.listen" if error.errno == errno.EADDRINUSE else ""
        raise ListenError(f"cannot listen on {listen} for HTTP: {error.strerror or error}{hint}") from error
    return sock


def address_of(sock: socket.socket) -> str:
    """Return the socket's listening address as `host:port`, with its actual port."""
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_reachable_from_elsewhere(sock: socket.socket) -> bool:
    """Return whether the socket listens on an address other than this machine's loopback."""
    return not ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback
