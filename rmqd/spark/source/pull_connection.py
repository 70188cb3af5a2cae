"""A blocking connection from an executor to a broker, with several pulls in flight.

Spark reads synchronously, in one process for each core: an event loop in a second thread would only compete with the
building of batches. While a batch is built, the broker writes the next responses into the socket's buffer.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Final

from rmqd.client.options import TlsOptions
from rmqd.client.remoting.tls import client_context, explain
from rmqd.errors import RemotingClosedError, RemotingConnectError, RemotingTimeoutError
from rmqd.spark.access import Access
from rmqd.wire.alike_headers import AlikeHeaders
from rmqd.wire.command import RemotingCommand
from rmqd.wire.frame import FrameDecoder

CONNECT_TIMEOUT_SECONDS: Final = 3.0
RECEIVE_BYTES: Final = 1 << 20

_idle: dict[tuple[int, str, Access], PullConnection] = {}


class PullConnection:
    """Sends requests, and returns responses in order of arrival."""

    def __init__(self, address: str, access: Access) -> None:
        self.address = address
        self.access = access
        self._frames = FrameDecoder()
        self._headers = AlikeHeaders()
        self._socket = _connect(address, access.client_options().tls)

    def send(self, frames: list[bytes], timeout_seconds: float) -> None:
        """Send whole request frames. Raises RemotingError."""
        try:
            self._socket.settimeout(timeout_seconds)
            self._socket.sendall(b"".join(frames))
        except OSError as error:
            raise RemotingClosedError(self.address, str(error) or "the request could not be sent") from error

    def receive(self, timeout_seconds: float) -> list[RemotingCommand]:
        """Return all responses that have arrived, at least one. Raises RemotingError or ProtocolError."""
        replies: list[RemotingCommand] = []
        try:
            self._socket.settimeout(timeout_seconds)
            while not replies:
                data = self._socket.recv(RECEIVE_BYTES)
                if not data:
                    raise RemotingClosedError(self.address, "the peer closed the connection")
                commands = map(self._headers.decode, self._frames.feed(data))
                replies = [command for command in commands if command.is_response]
        except TimeoutError:
            raise RemotingTimeoutError(self.address, f"no response to a pull in {timeout_seconds:g} s") from None
        except OSError as error:
            raise RemotingClosedError(self.address, str(error)) from error
        return replies

    def close(self) -> None:
        """Close at once. Outstanding responses are lost."""
        self._socket.close()


def _connect(address: str, tls: TlsOptions) -> socket.socket:
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    context = client_context(tls) if tls.enabled else None
    try:
        connected = socket.create_connection((host, int(port)), CONNECT_TIMEOUT_SECONDS)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is None:
            return connected
        with contextlib.ExitStack() as unless_encrypted:
            unless_encrypted.callback(connected.close)
            encrypted = context.wrap_socket(connected, server_hostname=tls.server_name or host)
            unless_encrypted.pop_all()
        return encrypted
    except (OSError, ValueError) as error:
        reason = explain(error, tls.server_name or host) or str(error) or type(error).__name__
        raise RemotingConnectError(address, reason) from error


def take_connection(address: str, access: Access) -> PullConnection:
    """Return an idle connection, a kept one or a new one.

    Raises RemotingConnectError, and RmqdError for missing keys or certificates.
    """
    return _idle.pop((os.getpid(), address, access), None) or PullConnection(address, access)


def keep_connection(connection: PullConnection) -> None:
    """Keep a connection for the process's next task. It must not have outstanding responses."""
    key = os.getpid(), connection.address, connection.access
    former = _idle.pop(key, None)
    if former is not None:
        former.close()
    _idle[key] = connection


def close_kept_connections() -> None:
    """Close the connections that this process keeps for its next task."""
    for key in [key for key in _idle if key[0] == os.getpid()]:
        _idle.pop(key).close()
