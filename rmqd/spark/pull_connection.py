"""An executor's connection to a broker: blocking, with several pulls under way, whose replies wait in the socket.

Spark reads synchronously, in one process for each core: an event loop in a second thread would only take turns with
the building of batches. While a batch is built, the broker answers the next pulls into the socket's buffer.
"""

from __future__ import annotations

import os
import socket
from typing import Final

from rmqd.client.connection import OPAQUE
from rmqd.errors import RemotingClosedError, RemotingConnectError, RemotingTimeoutError
from rmqd.wire.command import RemotingCommand, decode_command
from rmqd.wire.frame import FrameDecoder

CONNECT_TIMEOUT_SECONDS: Final = 3.0
RECEIVE_BYTES: Final = 1 << 20

_idle: dict[tuple[int, str], PullConnection] = {}


class PullConnection:
    """Sends requests and gives their replies in the order in which they come."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._frames = FrameDecoder()
        host, _, port = address.rpartition(":")
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT_SECONDS)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, ValueError) as error:
            raise RemotingConnectError(address, str(error) or type(error).__name__) from error

    def send(self, frames: list[bytes], timeout_seconds: float) -> None:
        """Send whole request frames. Raises RemotingError."""
        try:
            self._socket.settimeout(timeout_seconds)
            self._socket.sendall(b"".join(frames))
        except OSError as error:
            raise RemotingClosedError(self.address, str(error) or "it takes no request") from error

    def receive(self, timeout_seconds: float) -> list[RemotingCommand]:
        """All replies that are there, one at least. Raises RemotingError or ProtocolError."""
        replies: list[RemotingCommand] = []
        try:
            self._socket.settimeout(timeout_seconds)
            while not replies:
                data = self._socket.recv(RECEIVE_BYTES)
                if not data:
                    raise RemotingClosedError(self.address, "the peer closed the connection")
                commands = map(decode_command, self._frames.feed(data))
                replies = [command for command in commands if command.is_response]
        except TimeoutError:
            raise RemotingTimeoutError(self.address, f"no answer to a pull in {timeout_seconds:g} s") from None
        except OSError as error:
            raise RemotingClosedError(self.address, str(error)) from error
        return replies

    def close(self) -> None:
        """Close at once; replies under way are lost."""
        self._socket.close()


def next_opaque() -> int:
    """A number that tells a request from others of this process."""
    return next(OPAQUE) & 0x7FFFFFFF


def take_connection(address: str) -> PullConnection:
    """A connection that nobody uses now: a kept one, or a new one. Raises RemotingConnectError."""
    return _idle.pop((os.getpid(), address), None) or PullConnection(address)


def keep_connection(connection: PullConnection) -> None:
    """Keep a connection for the process's next task; no reply may be outstanding on it."""
    former = _idle.pop((os.getpid(), connection.address), None)
    if former is not None:
        former.close()
    _idle[os.getpid(), connection.address] = connection
